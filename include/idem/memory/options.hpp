#ifndef IDEM_MEMORY_OPTIONS_HPP
#define IDEM_MEMORY_OPTIONS_HPP

#include <cstdint>

#include <idem/clock.hpp>

namespace idem::inline v0_1 {

/// Bounds of a `MemoryStore`. A store without room refuses new keys (`UnavailableError`: their
/// handlers do not run) until old ones expire; it never forgets a key early, for then its
/// operation would run twice. So size it: keys per second × retention, times some 300 bytes.
struct MemoryOptions {
    /// Records at once, those of running and forgotten keys too. 0: only `bytes_max` bounds them.
    /// A refusal may come up to 2 % early.
    std::uint64_t records_max = 0;
    /// Bytes of all records with what the allocator adds. Once reached, results are left out
    /// (their repeats answer "completed, result not kept") while failures and checkpoints of up
    /// to 4 KiB still pass it. 0: none; then a flood of new keys ends at the kernel's OOM killer.
    std::uint64_t bytes_max = std::uint64_t{1} << 30U;
    /// Records to make room for at the start (about 20 bytes each). Growing later is cheap: it
    /// stops one shard in 64 for a moment. The constructor throws `std::bad_alloc` for too many.
    std::uint64_t reserve = 0;
    /// Empty: the machine's boot clock, which nobody can set. A clock of your own is called under
    /// a lock of the store: it must be quick, and must not call the store.
    StoreClock clock{};
};

/// What a `MemoryStore` holds; what is past its retention counts until it has been removed.
struct MemoryUsage {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;  ///< As `MemoryOptions::bytes_max` counts them.
};

}  // namespace idem::inline v0_1

#endif
