#ifndef IDEM_FWD_HPP
#define IDEM_FWD_HPP

/// Names of the public types, for headers that only pass them on.

namespace idem::inline v0_1 {

struct Key;
struct KeyView;
class Fingerprint;
class FingerprintHasher;
struct Failure;
struct RecordHeader;
struct RecordView;
struct GuardOptions;
struct RunOptions;
struct Event;
class Execution;
class Ticket;
template <class T>
struct Codec;
template <class T>
class Outcome;
template <class T>
class Claim;
template <class Store>
class CombiningStore;
template <class Store>
class CachedStore;
template <class Store>
class EncryptedStore;
template <class Front, class Back>
class TieredStore;

}  // namespace idem::inline v0_1

#endif
