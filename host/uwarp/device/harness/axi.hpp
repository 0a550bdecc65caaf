// The two buses of a NIC: the AXI4 subordinate behind its DMA, and the AXI4-Lite manager before its
// registers (Arm IHI 0022).
//
// Both work in two steps a cycle: Drive sets the NIC's inputs from what is stored, Sample looks at its
// outputs, settled, just before the clock edge. The port names are the gateware's, `__` encoded by
// Verilator as `___05F`.
#pragma once

#include <array>
#include <cstdint>

#include "events.hpp"
#include "iommu.hpp"

namespace uwarp {

// A queue of fixed size that never allocates. N is a power of two.
template <typename T, size_t N>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == N; }
  size_t size() const { return tail_ - head_; }
  T& front() { return items_[head_ % N]; }
  void push(const T& item) { items_[tail_++ % N] = item; }
  void pop() { ++head_; }

 private:
  std::array<T, N> items_{};
  size_t head_ = 0;
  size_t tail_ = 0;
};

// One word a cycle each way. A read's first word comes `read_latency` cycles after its address was taken,
// a write's answer `write_latency` cycles after its last word. Memory is read when the word goes out and
// written when the word comes in.
template <typename Top>
class Dma {
 public:
  Dma(unsigned read_latency, unsigned write_latency)
      : read_latency_(read_latency), write_latency_(write_latency) {}

  Iommu iommu;
  FaultLog faults;
  EventLog events;

  void Drive(Top& top, uint64_t now) {
    top.dma___05Farready = !reads_.full();
    if (!word_held_ && !reads_.empty() && reads_.front().due <= now) FetchWord(now);
    top.dma___05Frvalid = word_held_;
    if (word_held_) {
      top.dma___05Frdata = word_;
      top.dma___05Frresp = word_good_ ? kOkay : kSlaveError;
      top.dma___05Frlast = reads_.front().beats == 0;
    }
    top.dma___05Fawready = !writes_.full();
    top.dma___05Fwready = !words_.full();
    answer_shown_ = !answers_.empty() && answers_.front().due <= now;
    top.dma___05Fbvalid = answer_shown_;
    if (answer_shown_) top.dma___05Fbresp = answers_.front().good ? kOkay : kSlaveError;
  }

  void Sample(Top& top, uint64_t now) {
    if (word_held_ && top.dma___05Frready) {
      word_held_ = false;
      Burst& burst = reads_.front();
      if (burst.beats == 0) {
        events.Add(now, EventKind::kRead, burst.address, 8 * burst.words);
        reads_.pop();
      } else {
        --burst.beats;
        burst.address += 8;
      }
    }
    if (top.dma___05Farvalid && top.dma___05Farready) {
      const Burst burst{top.dma___05Faraddr, now + read_latency_, top.dma___05Farlen,
                        top.dma___05Farlen + 1u};
      CheckBurst(burst, top.dma___05Farsize, top.dma___05Farburst, now);
      events.Add(now, EventKind::kAsked, burst.address, 8 * burst.words);
      reads_.push(burst);
    }
    if (answer_shown_ && top.dma___05Fbready) answers_.pop();
    if (top.dma___05Fawvalid && top.dma___05Fawready) {
      const Burst burst{top.dma___05Fawaddr, 0, top.dma___05Fawlen, top.dma___05Fawlen + 1u};
      CheckBurst(burst, top.dma___05Fawsize, top.dma___05Fawburst, now);
      writes_.push(burst);
    }
    if (top.dma___05Fwvalid && top.dma___05Fwready) {
      words_.push({top.dma___05Fwdata, now, uint8_t(top.dma___05Fwstrb), bool(top.dma___05Fwlast)});
    }
    if (!words_.empty() && !writes_.empty() && !answers_.full()) StoreWord(now);
  }

 private:
  static constexpr uint8_t kOkay = 0;
  static constexpr uint8_t kSlaveError = 2;

  struct Burst {
    uint64_t address;
    uint64_t due;
    uint32_t beats;  // words to come after the next one
    uint32_t words;  // of the whole burst
  };
  struct Word {
    uint64_t data;
    uint64_t time;  // when it came
    uint8_t strobe;
    bool last;
  };
  struct Answer {
    uint64_t due;
    bool good;
  };

  void CheckBurst(const Burst& burst, unsigned size, unsigned kind, uint64_t now) {
    const uint64_t last = burst.address + burst.beats * 8;
    if (size != 3 || kind != 1 || burst.address % 8 || (burst.address ^ last) >> 12) {
      faults.Add(now, FaultKind::kProtocol, burst.address);
    }
  }

  void FetchWord(uint64_t now) {
    const uint64_t address = reads_.front().address;
    word_good_ = iommu.Read(address & ~uint64_t(7), word_);
    if (!word_good_) faults.Add(now, FaultKind::kRead, address);
    word_held_ = true;
  }

  void StoreWord(uint64_t now) {
    Burst& burst = writes_.front();
    const Word word = words_.front();
    words_.pop();
    uint64_t fault_address = 0;
    FaultKind kind{};
    if (!iommu.Write(burst.address & ~uint64_t(7), word.data, word.strobe, fault_address, kind)) {
      faults.Add(now, kind, fault_address);
      burst_good_ = false;
    }
    if (word.last != (burst.beats == 0)) faults.Add(now, FaultKind::kProtocol, burst.address);
    if (burst.beats == 0) {
      events.Add(word.time, EventKind::kWrite, burst.address, 8 * burst.words);
      answers_.push({now + write_latency_, burst_good_});
      burst_good_ = true;
      writes_.pop();
    } else {
      --burst.beats;
      burst.address += 8;
    }
  }

  unsigned read_latency_;
  unsigned write_latency_;
  Ring<Burst, 64> reads_;
  Ring<Burst, 64> writes_;
  Ring<Word, 64> words_;
  Ring<Answer, 256> answers_;
  bool answer_shown_ = false;
  uint64_t word_ = 0;
  bool word_held_ = false;
  bool word_good_ = true;
  bool burst_good_ = true;
};

// One transaction at a time.
template <typename Top>
class Registers {
 public:
  void StartRead(uint32_t address) {
    address_ = address;
    address_pending_ = true;
    state_ = State::kRead;
  }

  void StartWrite(uint32_t address, uint32_t value) {
    address_ = address;
    value_ = value;
    address_pending_ = data_pending_ = true;
    state_ = State::kWrite;
  }

  // The transaction is over; or it is given up.
  bool idle() const { return state_ == State::kIdle; }
  void Abandon() { state_ = State::kIdle; }
  uint32_t value() const { return value_; }
  unsigned response() const { return response_; }

  void Drive(Top& top) {
    const bool reading = state_ == State::kRead;
    const bool writing = state_ == State::kWrite;
    top.bus___05Farvalid = reading && address_pending_;
    top.bus___05Frready = reading && !address_pending_;
    top.bus___05Fawvalid = writing && address_pending_;
    top.bus___05Fwvalid = writing && data_pending_;
    top.bus___05Fbready = writing && !address_pending_ && !data_pending_;
    if (reading) top.bus___05Faraddr = address_;
    if (writing) {
      top.bus___05Fawaddr = address_;
      top.bus___05Fwdata = value_;
      top.bus___05Fwstrb = 0xF;
    }
  }

  void Sample(Top& top, uint64_t now, EventLog& events) {
    if (state_ == State::kIdle) return;
    if (state_ == State::kRead) {
      if (address_pending_) {
        if (top.bus___05Farready) address_pending_ = false;
      } else if (top.bus___05Frvalid) {
        value_ = top.bus___05Frdata;
        response_ = top.bus___05Frresp;
        state_ = State::kIdle;
      }
      return;
    }
    if (!address_pending_ && !data_pending_) {
      if (top.bus___05Fbvalid) {
        response_ = top.bus___05Fbresp;
        state_ = State::kIdle;
      }
      return;
    }
    if (top.bus___05Fawready) address_pending_ = false;
    if (top.bus___05Fwready) data_pending_ = false;
    if (!address_pending_ && !data_pending_) events.Add(now, EventKind::kRegister, address_, 4);
  }

 private:
  enum class State { kIdle, kRead, kWrite };
  State state_ = State::kIdle;
  bool address_pending_ = false;
  bool data_pending_ = false;
  uint32_t address_ = 0;
  uint32_t value_ = 0;
  unsigned response_ = 0;
};

}  // namespace uwarp
