#ifndef IDEM_DETAIL_NO_CANCEL_HPP
#define IDEM_DETAIL_NO_CANCEL_HPP

#include <pthread.h>

namespace idem::inline v0_1::detail {

/// Puts off a pthread_cancel of this thread: what has happened is recorded first, and a thread
/// that is unwound inside a noexcept function would take the whole process with it.
class NoCancel {
public:
    NoCancel() noexcept { (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~NoCancel() {
        int disabled = 0;
        (void)pthread_setcancelstate(before_, &disabled);
    }
    NoCancel(const NoCancel&) = delete;
    NoCancel& operator=(const NoCancel&) = delete;

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace idem::inline v0_1::detail

#endif
