// What happened at a NIC's ports, and when: kept only on request, for who measures.
#pragma once

#include <cstdint>
#include <deque>

namespace uwarp {

enum class EventKind : uint32_t {
  kArrival = 0,    // a frame's last word came in; `octets` are the frame's, `address` is 0
  kWrite = 1,      // a write burst's last word was taken; `address` is its, `octets` the burst's
  kDeparture = 2,  // a frame's first word went out; `octets` are those of the word, `address` is 0
  kRegister = 3,   // a register's new value was taken; `address` is the register's, `octets` is 4
  kRead = 4,       // a read burst's last word was given; `address` is its, `octets` the burst's
  kAsked = 5,      // a read burst's address was taken; `address` is its first word's
};

struct Event {
  uint64_t time;
  uint64_t address;
  uint32_t octets;
  EventKind kind;
};
static_assert(sizeof(Event) == 24);

class EventLog {
 public:
  bool wanted = false;
  std::deque<Event> kept;

  void Add(uint64_t time, EventKind kind, uint64_t address, uint64_t octets) {
    if (wanted) kept.push_back({time, address, uint32_t(octets), kind});
  }
};

}  // namespace uwarp
