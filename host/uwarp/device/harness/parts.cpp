// The parts of the harness that need no NIC, for their own tests.
#include <cstdint>

#include "impair.hpp"
#include "iommu.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using uwarp::Direction;
using uwarp::Fate;
using uwarp::Iommu;

EXPORT void* uwarp_direction_new(uint64_t loss, uint64_t duplicate, uint64_t reorder, uint64_t seed,
                                 uint64_t source) {
  return new Direction<uint64_t>({loss, duplicate, reorder, seed}, source);
}

EXPORT void uwarp_direction_delete(void* direction) {
  delete static_cast<Direction<uint64_t>*>(direction);
}

// Offers `item`, or releases all if it is UINT64_MAX. Returns the number of outcomes, which are stored as
// pairs of fate and item; there is room for 64 pairs.
EXPORT unsigned uwarp_direction_offer(void* direction, uint64_t item, uint64_t* outcomes) {
  auto& wire = *static_cast<Direction<uint64_t>*>(direction);
  Direction<uint64_t>::Outcome outcome;
  if (item == UINT64_MAX) {
    wire.Release(outcome);
  } else {
    wire.Offer(item, outcome);
  }
  for (size_t i = 0; i < outcome.size() && i < 64; ++i) {
    outcomes[2 * i] = uint64_t(outcome[i].first);
    outcomes[2 * i + 1] = outcome[i].second;
  }
  return unsigned(outcome.size());
}

EXPORT void* uwarp_iommu_new() { return new Iommu; }
EXPORT void uwarp_iommu_delete(void* iommu) { delete static_cast<Iommu*>(iommu); }
EXPORT int uwarp_iommu_map(void* iommu, uint64_t start, uint64_t length, uint8_t* memory,
                           int writable) {
  return static_cast<Iommu*>(iommu)->Map(start, length, memory, writable != 0);
}
EXPORT int uwarp_iommu_unmap(void* iommu, uint64_t start) {
  return static_cast<Iommu*>(iommu)->Unmap(start);
}
EXPORT int uwarp_iommu_read(void* iommu, uint64_t address, uint64_t* word) {
  return static_cast<Iommu*>(iommu)->Read(address, *word);
}
// Returns -1 if all octets were written, else the kind of the fault.
EXPORT int uwarp_iommu_write(void* iommu, uint64_t address, uint64_t word, unsigned strobe,
                             uint64_t* fault_address) {
  uwarp::FaultKind kind{};
  return static_cast<Iommu*>(iommu)->Write(address, word, strobe, *fault_address, kind)
             ? -1
             : int(kind);
}
