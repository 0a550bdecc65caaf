// What a wire does to frames. The rule is that of uwarp/device/impair.py, word for word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace uwarp {

constexpr uint64_t kIdleCycles = 4096;

enum class Fate : uint8_t { kDelivered = 0, kDropped = 1, kDuplicate = 2 };

inline uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Probabilities as integers out of 2^53.
struct Impairments {
  uint64_t loss = 0;
  uint64_t duplicate = 0;
  uint64_t reorder = 0;
  uint64_t seed = 1;
};

template <typename T>
class Direction {
 public:
  using Outcome = std::vector<std::pair<Fate, T>>;

  Direction(const Impairments& impairments, uint64_t source)
      : impairments_(impairments), state_(Mix(Mix(impairments.seed) + source)) {}

  bool holds() const { return !held_.empty(); }

  // The next frame of the direction; what happens now is appended to `outcome`.
  void Offer(const T& item, Outcome& outcome) {
    const bool lost = (Draw() >> 11) < impairments_.loss;
    const bool duplicate = (Draw() >> 11) < impairments_.duplicate;
    const bool reorder = (Draw() >> 11) < impairments_.reorder;
    const unsigned hold = 1 + unsigned(Draw() >> 61);
    if (lost) {
      outcome.emplace_back(Fate::kDropped, item);
      return;
    }
    if (!reorder) Deliver(outcome, item, duplicate);
    size_t kept = 0;
    for (size_t i = 0; i < held_.size(); ++i) {
      if (--held_[i].remaining == 0) {
        Deliver(outcome, held_[i].item, held_[i].duplicate);
      } else {
        if (kept != i) held_[kept] = std::move(held_[i]);
        ++kept;
      }
    }
    held_.resize(kept);
    if (reorder) held_.push_back({item, hold, duplicate});
  }

  // All that is held: the direction has been idle for kIdleCycles.
  void Release(Outcome& outcome) {
    for (const Held& held : held_) Deliver(outcome, held.item, held.duplicate);
    held_.clear();
  }

 private:
  struct Held {
    T item{};
    unsigned remaining = 0;
    bool duplicate = false;
  };

  uint64_t Draw() {
    state_ += 0x9E3779B97F4A7C15u;
    return Mix(state_);
  }

  static void Deliver(Outcome& outcome, const T& item, bool duplicate) {
    outcome.emplace_back(Fate::kDelivered, item);
    if (duplicate) outcome.emplace_back(Fate::kDuplicate, item);
  }

  Impairments impairments_;
  uint64_t state_;
  std::vector<Held> held_;
};

}  // namespace uwarp
