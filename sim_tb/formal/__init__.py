"""Bounded proofs: properties of small units, checked for every input by an SMT solver.

A proof is a component that holds the unit and states assumptions about its inputs (``Assume``),
what must hold (``Assert``) and what must be possible (``Cover``). Its input ports are the solver's
to choose in every cycle. :mod:`.prove` runs it, :mod:`.stream` has the rules of streams, and
:mod:`.faults` what the proofs must refute.
"""
