// NICs on one clock, joined in pairs by wires, for uwarp/device/rtl.py.
//
// A frame reaches the other NIC kWireCycles cycles after it has left. So no NIC can notice within that
// time what another does, and each runs for up to that many cycles by itself (in a thread of its own if
// asked) before frames are exchanged. The result does not depend on where those spans begin.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "Vuwarp_nic.h"
#include "axi.hpp"
#include "events.hpp"
#include "impair.hpp"
#include "iommu.hpp"
#include "mac.hpp"
#include "verilated.h"
#ifdef UWARP_TRACE
#include "verilated_vcd_c.h"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace uwarp;
using Top = Vuwarp_nic;

constexpr uint64_t kWireCycles = 32;
constexpr unsigned kResetCycles = 4;
constexpr uint64_t kBusPatience = 1 << 16;  // cycles that a register may take

class Nic {
 public:
  Nic(unsigned read_latency, unsigned write_latency, const std::string& trace)
      : dma(read_latency, write_latency), top_(new Top(&context_)) {
#ifdef UWARP_TRACE
    context_.traceEverOn(true);
    if (!trace.empty()) {
      waves_.reset(new VerilatedVcdC);
      top_->trace(waves_.get(), 99);
      waves_->set_time_unit("1ps");
      waves_->set_time_resolution("1ps");
      waves_->open(trace.c_str());
    }
#else
    (void)trace;
#endif
    top_->reset_pin = 1;
    for (unsigned i = 0; i < kResetCycles; ++i) Clock([] {});
    top_->reset_pin = 0;
    Clock([] {});  // until it is seen
  }

  ~Nic() {
#ifdef UWARP_TRACE
    if (waves_) waves_->close();
#endif
    top_->final();
  }

  Dma<Top> dma;
  Registers<Top> registers;
  Sender<Top> sender;
  Receiver<Top> receiver;

  // Runs to `end`, or, if `until_idle`, to the end of the register access.
  void Run(uint64_t end, bool until_idle) {
    while (now_ < end) {
      dma.Drive(*top_, now_);
      registers.Drive(*top_);
      sender.Drive(*top_, now_);
      receiver.Drive(*top_, now_);
      Clock([this] {
        dma.Sample(*top_, now_);
        registers.Sample(*top_, now_, dma.events);
        sender.Sample(*top_, now_, dma.faults, dma.events);
        receiver.Sample(*top_, now_, dma.faults, dma.events);
      });
      ++now_;
      if (until_idle && registers.idle()) break;
    }
  }

  uint64_t now() const { return now_; }
  bool irq() const { return top_->irq; }
  void Flush() {
#ifdef UWARP_TRACE
    if (waves_) waves_->flush();
#endif
  }

 private:
  // One cycle; `sample` sees the outputs as they are just before the edge.
  template <typename F>
  void Clock(F sample) {
    top_->clk = 0;
    top_->eval();
    Dump();
    sample();
    top_->clk = 1;
    top_->eval();
    Dump();
  }

  void Dump() {
#ifdef UWARP_TRACE
    if (waves_) waves_->dump(3200 * edges_++);
#endif
  }

  VerilatedContext context_;
  std::unique_ptr<Top> top_;
  uint64_t now_ = 0;
#ifdef UWARP_TRACE
  std::unique_ptr<VerilatedVcdC> waves_;
  uint64_t edges_ = 0;
#endif
};

struct RecordHeader {
  uint64_t time;
  uint32_t length;
  uint8_t source;
  uint8_t fate;
  uint16_t reserved;
};
static_assert(sizeof(RecordHeader) == 16);

class Link {
 public:
  Link(unsigned count, const Impairments& impairments, unsigned read_latency,
       unsigned write_latency, bool threads, uint64_t log_limit, const std::string& trace)
      : log_limit_(log_limit) {
    for (unsigned i = 0; i < count; ++i) {
      std::string file = trace;
      if (!file.empty()) {
        const size_t dot = file.rfind('.');
        const size_t stem = dot == std::string::npos ? file.size() : dot;
        file.insert(stem, std::to_string(i));
      }
      nics.emplace_back(new Nic(read_latency, write_latency, file));
      wires_.emplace_back(impairments, i);
    }
    for (unsigned i = 1; threads && i < count; ++i) {
      helpers_.emplace_back([this, i] { Help(i); });
    }
  }

  ~Link() {
    goal_.store(kStop);
    goal_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  std::vector<std::unique_ptr<Nic>> nics;
  uint64_t records_lost = 0;

  uint64_t now() const { return nics[0]->now(); }

  void Run(uint64_t cycles) {
    const uint64_t end = now() + cycles;
    while (now() < end) RunAll(std::min(end, now() + kWireCycles));
  }

  // Runs until the register access of `nic` is over. False if it never is.
  bool Access(Nic& nic) {
    const uint64_t deadline = now() + kBusPatience;
    while (!nic.registers.idle()) {
      if (now() >= deadline) {
        nic.registers.Abandon();
        return false;
      }
      nic.Run(now() + kWireCycles, true);
      for (auto& other : nics) other->Run(nic.now(), false);
      Exchange();
    }
    return true;
  }

  void Inject(unsigned to, const uint8_t* octets, size_t length, bool error) {
    auto frame = std::make_shared<Frame>();
    frame->octets.assign(octets, octets + length);
    frame->error = error;
    nics[to]->receiver.Push({now(), std::move(frame)});
  }

  uint64_t LogSize() const { return log_octets_; }

  uint64_t TakeLog(uint8_t* out, uint64_t room) {
    uint64_t used = 0;
    while (!log_.empty()) {
      const Record& record = log_.front();
      const auto& octets = record.frame->octets;
      if (used + sizeof(RecordHeader) + octets.size() > room) break;
      std::memcpy(out + used, &record.header, sizeof(RecordHeader));
      std::memcpy(out + used + sizeof(RecordHeader), octets.data(), octets.size());
      used += sizeof(RecordHeader) + octets.size();
      log_.pop_front();
    }
    log_octets_ -= used;
    return used;
  }

 private:
  struct Wire {
    Wire(const Impairments& impairments, unsigned source) : fates(impairments, source) {}
    Direction<TimedFrame> fates;
    uint64_t last = 0;  // when the last frame left
  };
  struct Record {
    RecordHeader header;
    std::shared_ptr<const Frame> frame;
  };

  static constexpr uint64_t kStop = UINT64_MAX;

  void Help(unsigned i) {
    uint64_t seen = 0;
    for (;;) {
      goal_.wait(seen);
      seen = goal_.load();
      if (seen == kStop) return;
      nics[i]->Run(seen, false);
      if (running_.fetch_sub(1) == 1) running_.notify_one();
    }
  }

  void RunAll(uint64_t end) {
    if (helpers_.empty()) {
      for (auto& nic : nics) nic->Run(end, false);
    } else {
      running_.store(unsigned(helpers_.size()));
      goal_.store(end);
      goal_.notify_all();
      nics[0]->Run(end, false);
      for (unsigned left; (left = running_.load()) != 0;) running_.wait(left);
    }
    Exchange();
  }

  // Decides what becomes of the frames that have left, in the order in which they left.
  void Exchange() {
    bool any = false;
    for (unsigned i = 0; i < nics.size(); ++i) {
      any |= !nics[i]->sender.sent.empty() || wires_[i].fates.holds();
    }
    if (!any) return;
    std::vector<size_t> position(nics.size());
    for (;;) {
      unsigned source = 0;
      const TimedFrame* first = nullptr;
      for (unsigned i = 0; i < nics.size(); ++i) {
        const auto& sent = nics[i]->sender.sent;
        if (position[i] < sent.size() && (!first || sent[position[i]].time < first->time)) {
          first = &sent[position[i]];
          source = i;
        }
      }
      if (!first) break;
      ++position[source];
      ReleaseIdle(source, first->time);
      wires_[source].last = first->time;
      outcome_.clear();
      wires_[source].fates.Offer(*first, outcome_);
      Deliver(source, first->time);
    }
    for (unsigned i = 0; i < nics.size(); ++i) {
      nics[i]->sender.sent.clear();
      ReleaseIdle(i, now());
    }
  }

  void ReleaseIdle(unsigned source, uint64_t time) {
    Wire& wire = wires_[source];
    if (!wire.fates.holds() || time < wire.last + kIdleCycles) return;
    outcome_.clear();
    wire.fates.Release(outcome_);
    Deliver(source, wire.last + kIdleCycles);
  }

  void Deliver(unsigned source, uint64_t time) {
    DirectionCounts& counts = nics[source]->sender.counts;
    const unsigned peer = source ^ 1;
    for (auto& [fate, item] : outcome_) {
      if (fate == Fate::kDropped) {
        ++counts.dropped;
      } else {
        ++counts.delivered;
        if (peer < nics.size()) nics[peer]->receiver.Push({time + kWireCycles, item.frame});
      }
      const uint64_t size = sizeof(RecordHeader) + item.frame->octets.size();
      while (!log_.empty() && log_octets_ + size > log_limit_) {
        log_octets_ -= sizeof(RecordHeader) + log_.front().frame->octets.size();
        log_.pop_front();
        ++records_lost;
      }
      log_.push_back({{item.time, uint32_t(item.frame->octets.size()), uint8_t(source),
                       uint8_t(fate), 0},
                      item.frame});
      log_octets_ += size;
    }
  }

  std::vector<Wire> wires_;  // by sender
  Direction<TimedFrame>::Outcome outcome_;
  std::deque<Record> log_;
  uint64_t log_octets_ = 0;
  uint64_t log_limit_;
  std::vector<std::thread> helpers_;
  std::atomic<uint64_t> goal_{0};
  std::atomic<unsigned> running_{0};
};

Nic& NicOf(void* link, unsigned nic) { return *static_cast<Link*>(link)->nics[nic]; }

}  // namespace

EXPORT void* uwarp_link_new(unsigned count, uint64_t loss, uint64_t duplicate, uint64_t reorder,
                            uint64_t seed, unsigned read_latency, unsigned write_latency,
                            int threads, uint64_t log_limit, const char* trace) {
  return new Link(count, {loss, duplicate, reorder, seed}, read_latency, write_latency,
                  threads != 0, log_limit, trace);
}
EXPORT void uwarp_link_delete(void* link) { delete static_cast<Link*>(link); }
EXPORT void uwarp_link_run(void* link, uint64_t cycles) { static_cast<Link*>(link)->Run(cycles); }
EXPORT uint64_t uwarp_link_time(void* link) { return static_cast<Link*>(link)->now(); }
EXPORT uint64_t uwarp_link_records_lost(void* link) {
  return static_cast<Link*>(link)->records_lost;
}
EXPORT uint64_t uwarp_link_log_size(void* link) { return static_cast<Link*>(link)->LogSize(); }
EXPORT uint64_t uwarp_link_take_log(void* link, uint8_t* out, uint64_t room) {
  return static_cast<Link*>(link)->TakeLog(out, room);
}
EXPORT void uwarp_link_inject(void* link, unsigned to, const uint8_t* octets, uint64_t length,
                              int error) {
  static_cast<Link*>(link)->Inject(to, octets, length, error != 0);
}
EXPORT void uwarp_link_flush(void* link) {
  for (auto& nic : static_cast<Link*>(link)->nics) nic->Flush();
}

// 0 if it went well, -1 if the register never answered, else the error response.
EXPORT int uwarp_nic_read32(void* link, unsigned nic, uint32_t address, uint32_t* value) {
  Nic& target = NicOf(link, nic);
  target.registers.StartRead(address);
  if (!static_cast<Link*>(link)->Access(target)) return -1;
  *value = target.registers.value();
  return int(target.registers.response());
}
EXPORT int uwarp_nic_write32(void* link, unsigned nic, uint32_t address, uint32_t value) {
  Nic& target = NicOf(link, nic);
  target.registers.StartWrite(address, value);
  if (!static_cast<Link*>(link)->Access(target)) return -1;
  return int(target.registers.response());
}
EXPORT int uwarp_nic_map(void* link, unsigned nic, uint64_t start, uint64_t length,
                         uint8_t* memory, int writable) {
  return NicOf(link, nic).dma.iommu.Map(start, length, memory, writable != 0);
}
EXPORT int uwarp_nic_unmap(void* link, unsigned nic, uint64_t start) {
  return NicOf(link, nic).dma.iommu.Unmap(start);
}
EXPORT int uwarp_nic_irq(void* link, unsigned nic) { return NicOf(link, nic).irq(); }

// Copies the faults that were kept, up to `room`, and forgets all. Returns how many there were.
EXPORT uint64_t uwarp_nic_take_faults(void* link, unsigned nic, uwarp::Fault* out,
                                      uint64_t room) {
  FaultLog& log = NicOf(link, nic).dma.faults;
  const uint64_t count = log.count;
  for (size_t i = 0; i < log.kept.size() && i < room; ++i) out[i] = log.kept[i];
  log = FaultLog();
  return count;
}
// Keep events from now on, or stop; those kept are forgotten.
EXPORT void uwarp_nic_watch(void* link, unsigned nic, int wanted) {
  EventLog& log = NicOf(link, nic).dma.events;
  log = EventLog();
  log.wanted = wanted != 0;
}
// Moves the oldest events, up to `room`; with no `out` only counts them. Returns how many.
EXPORT uint64_t uwarp_nic_take_events(void* link, unsigned nic, uwarp::Event* out, uint64_t room) {
  auto& kept = NicOf(link, nic).dma.events.kept;
  if (!out) return kept.size();
  const uint64_t count = std::min<uint64_t>(room, kept.size());
  std::copy_n(kept.begin(), count, out);
  kept.erase(kept.begin(), kept.begin() + count);
  return count;
}
EXPORT void uwarp_nic_counts(void* link, unsigned nic, uwarp::DirectionCounts* counts) {
  *counts = NicOf(link, nic).sender.counts;
}
