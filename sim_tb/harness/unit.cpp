// A unit on one clock whose ports are read and written in place, for sim_tb/units.py.
//
// UNIT_PORTS lists the addresses of the ports of `top` beside clock and reset.

#include "Vunit.h"
#include "verilated.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Unit {
  VerilatedContext context;
  Vunit top{&context};
};

}  // namespace

EXPORT void* unit_new() { return new Unit; }

EXPORT void unit_delete(void* unit) {
  static_cast<Unit*>(unit)->top.final();
  delete static_cast<Unit*>(unit);
}

EXPORT void unit_ports(void* unit, void** addresses) {
  Vunit& top = static_cast<Unit*>(unit)->top;
  void* const ports[] = {UNIT_PORTS};
  for (void* port : ports) *addresses++ = port;
}

// With the clock low, what the inputs now lead to.
EXPORT void unit_settle(void* unit) {
  Vunit& top = static_cast<Unit*>(unit)->top;
  top.clk = 0;
  top.eval();
}

// The rising edge of the clock, after it has settled.
EXPORT void unit_edge(void* unit) {
  Vunit& top = static_cast<Unit*>(unit)->top;
  top.clk = 1;
  top.eval();
}
