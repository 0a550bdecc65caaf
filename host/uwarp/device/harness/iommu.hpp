// The memory that a NIC may reach: ranges of DMA addresses, each backed by memory of this process.
//
// Bounds are those of the octets mapped, not of pages. Writes are checked octet by octet, as strobed. A
// read always covers a whole word of the bus: it is in bounds if any octet of the word is mapped, and
// the octets that are not read as 0xEE.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace uwarp {

enum class FaultKind : uint32_t {
  kRead = 0,         // read of an address that is not mapped
  kWrite = 1,        // write of an address that is not mapped
  kReadOnly = 2,     // write into a mapping that is not writable
  kProtocol = 3,     // a burst that AXI4 or the contract forbids
  kRxStalled = 4,    // rx was not ready for a beat: the octets are lost
  kTxOversize = 5,   // a frame of more than 64 KiB was sent
};

struct Fault {
  uint64_t time;
  uint64_t address;
  FaultKind kind;
  uint32_t reserved = 0;
};

// The first faults of a NIC, and how many there were.
struct FaultLog {
  static constexpr size_t kKept = 64;
  uint64_t count = 0;
  std::vector<Fault> kept;

  void Add(uint64_t time, FaultKind kind, uint64_t address) {
    ++count;
    if (kept.size() < kKept) kept.push_back({time, address, kind});
  }
};

class Iommu {
 public:
  bool Map(uint64_t start, uint64_t length, uint8_t* memory, bool writable) {
    if (length == 0 || start + (length - 1) < start) return false;
    auto next = std::lower_bound(ranges_.begin(), ranges_.end(), start, StartsBefore);
    if (next != ranges_.end() && next->start <= start + (length - 1)) return false;
    if (next != ranges_.begin() && std::prev(next)->last >= start) return false;
    ranges_.insert(next, {start, start + (length - 1), memory, writable});
    recent_ = 0;
    return true;
  }

  bool Unmap(uint64_t start) {
    auto found = std::lower_bound(ranges_.begin(), ranges_.end(), start, StartsBefore);
    if (found == ranges_.end() || found->start != start) return false;
    ranges_.erase(found);
    recent_ = 0;
    return true;
  }

  // The word at `address`, a multiple of 8. False if no octet of it is mapped.
  bool Read(uint64_t address, uint64_t& word) {
    if (const Range* range = Find(address); range && range->last - address >= 7) {
      std::memcpy(&word, range->memory + (address - range->start), 8);
      return true;
    }
    uint8_t octets[8];
    bool any = false;
    for (unsigned i = 0; i < 8; ++i) {
      const Range* range = Find(address + i);
      any |= range != nullptr;
      octets[i] = range ? range->memory[address + i - range->start] : 0xEE;
    }
    std::memcpy(&word, octets, 8);
    return any;
  }

  // The strobed octets of the word at `address`. Those in bounds are written. False if one is not;
  // `fault_address` and `kind` then tell of the first.
  bool Write(uint64_t address, uint64_t word, unsigned strobe, uint64_t& fault_address,
             FaultKind& kind) {
    if (strobe == 0xFF) {
      if (const Range* range = Find(address);
          range && range->last - address >= 7 && range->writable) {
        std::memcpy(range->memory + (address - range->start), &word, 8);
        return true;
      }
    }
    bool good = true;
    for (unsigned i = 0; i < 8; ++i) {
      if (!(strobe >> i & 1)) continue;
      const Range* range = Find(address + i);
      if (range && range->writable) {
        range->memory[address + i - range->start] = uint8_t(word >> (8 * i));
      } else if (good) {
        good = false;
        fault_address = address + i;
        kind = range ? FaultKind::kReadOnly : FaultKind::kWrite;
      }
    }
    return good;
  }

 private:
  struct Range {
    uint64_t start;
    uint64_t last;
    uint8_t* memory;
    bool writable;
  };

  static bool StartsBefore(const Range& range, uint64_t start) { return range.start < start; }

  const Range* Find(uint64_t address) {
    if (recent_ < ranges_.size() && ranges_[recent_].start <= address &&
        address <= ranges_[recent_].last) {
      return &ranges_[recent_];
    }
    auto next = std::upper_bound(
        ranges_.begin(), ranges_.end(), address,
        [](uint64_t value, const Range& range) { return value < range.start; });
    if (next == ranges_.begin()) return nullptr;
    --next;
    if (address > next->last) return nullptr;
    recent_ = size_t(next - ranges_.begin());
    return &*next;
  }

  std::vector<Range> ranges_;  // by start; they do not overlap
  size_t recent_ = 0;          // where the last address was found
};

}  // namespace uwarp
