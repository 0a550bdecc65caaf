// The MAC and the wire of a NIC, at the true rate of 10 Gigabit Ethernet.
//
// A frame of L octets without FCS, padded to 60, takes L + 4 (FCS) + 8 (preamble and delimiter) + 12 (gap,
// IEEE 802.3 clause 4.4.2) octets of the wire, 8 octets a cycle. Time on the wire is kept in octets, so
// that fractions of a cycle add up and a saturated wire carries exactly 8 octets a cycle.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "events.hpp"
#include "iommu.hpp"

namespace uwarp {

constexpr unsigned kShortest = 60;
constexpr unsigned kOverhead = 4 + 8 + 12;
constexpr size_t kLongest = 65536;

struct Frame {
  std::vector<uint8_t> octets;
  bool error = false;
};

// A frame and a time: for a sender when it had left, for a receiver when it may begin to arrive.
struct TimedFrame {
  uint64_t time = 0;
  std::shared_ptr<const Frame> frame;
};

// When the wire can take the next frame.
class Pace {
 public:
  // First cycle in which a frame may begin.
  uint64_t next() const { return (free_ + 7) / 8; }

  // A frame of `length` octets begins in cycle `now`. One that begins as soon as the wire is free takes up
  // where the last one ended, within the cycle.
  void Begin(uint64_t now, uint64_t length) {
    const uint64_t start = free_ + 8 > 8 * now ? free_ : 8 * now;
    free_ = start + length + kOverhead;
  }

 private:
  uint64_t free_ = 0;  // in octets
};

struct DirectionCounts {
  uint64_t frames = 0;       // that left
  uint64_t octets = 0;       // of theirs, padding included
  uint64_t wire_octets = 0;  // with FCS, preamble and gap
  uint64_t underruns = 0;    // cycles within a frame in which the NIC had nothing
  uint64_t delivered = 0;    // put on the other end, duplicates included
  uint64_t dropped = 0;      // by the wire
};

// Takes the frames that the NIC sends.
template <typename Top>
class Sender {
 public:
  std::vector<TimedFrame> sent;  // since it was last emptied
  DirectionCounts counts;

  void Drive(Top& top, uint64_t now) {
    ready_ = !octets_.empty() || now >= pace_.next();
    top.tx___05Fready = ready_;
  }

  void Sample(Top& top, uint64_t now, FaultLog& faults, EventLog& events) {
    if (!ready_) return;
    if (!top.tx___05Fvalid) {
      if (!octets_.empty()) ++counts.underruns;
      return;
    }
    const bool begins = octets_.empty();
    const auto& beat = top.tx___05Fpayload;
    const uint64_t data = beat[0] | uint64_t(beat[1]) << 32;
    unsigned count = beat[2] & 15;
    if (count == 0 || count > 8) {
      faults.Add(now, FaultKind::kProtocol, 0);
      count = 8;
    }
    if (begins) {
      first_ = now;
      events.Add(now, EventKind::kDeparture, 0, count);
    }
    const size_t length = octets_.size();
    octets_.resize(length + count);
    std::memcpy(octets_.data() + length, &data, count);
    error_ |= (beat[2] >> 5 & 1) != 0;
    if (octets_.size() > kLongest) {
      faults.Add(now, FaultKind::kTxOversize, 0);
      octets_.clear();
    } else if (beat[2] >> 4 & 1) {
      Finish(now);
    }
  }

 private:
  void Finish(uint64_t now) {
    if (octets_.size() < kShortest) octets_.resize(kShortest, 0);
    const uint64_t idle = now + 1 - first_ - (octets_.size() + 7) / 8;
    const uint64_t length = octets_.size() + (int64_t(idle) > 0 ? 8 * idle : 0);
    pace_.Begin(first_, length);
    ++counts.frames;
    counts.octets += octets_.size();
    counts.wire_octets += length + kOverhead;
    auto frame = std::make_shared<Frame>();
    frame->octets = octets_;
    frame->error = error_;
    sent.push_back({now, std::move(frame)});
    octets_.clear();
    error_ = false;
  }

  Pace pace_;
  std::vector<uint8_t> octets_;  // of the frame that is being sent
  uint64_t first_ = 0;           // cycle of its first beat
  bool error_ = false;
  bool ready_ = false;
};

// Gives the NIC what arrives. It cannot be held up.
template <typename Top>
class Receiver {
 public:
  void Push(TimedFrame frame) { queue_.push_back(std::move(frame)); }
  bool idle() const { return queue_.empty() && !frame_; }

  void Drive(Top& top, uint64_t now) {
    if (!frame_ && !queue_.empty() && queue_.front().time <= now && pace_.next() <= now) {
      frame_ = std::move(queue_.front().frame);
      queue_.pop_front();
      position_ = 0;
      pace_.Begin(now, frame_->octets.size());
    }
    top.rx___05Fvalid = frame_ != nullptr;
    if (!frame_) return;
    const size_t rest = frame_->octets.size() - position_;
    const unsigned count = rest < 8 ? unsigned(rest) : 8;
    const bool last = rest <= 8;
    uint64_t data = 0;
    std::memcpy(&data, frame_->octets.data() + position_, count);
    top.rx___05Fpayload[0] = uint32_t(data);
    top.rx___05Fpayload[1] = uint32_t(data >> 32);
    top.rx___05Fpayload[2] = count | unsigned(last) << 4 | unsigned(last && frame_->error) << 5;
  }

  void Sample(Top& top, uint64_t now, FaultLog& faults, EventLog& events) {
    if (!frame_) return;
    if (!top.rx___05Fready) faults.Add(now, FaultKind::kRxStalled, 0);
    position_ += 8;
    if (position_ >= frame_->octets.size()) {
      events.Add(now, EventKind::kArrival, 0, frame_->octets.size());
      frame_.reset();
    }
  }

 private:
  std::deque<TimedFrame> queue_;
  std::shared_ptr<const Frame> frame_;  // that is arriving
  size_t position_ = 0;
  Pace pace_;
};

}  // namespace uwarp
