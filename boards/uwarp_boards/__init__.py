"""Builds of the gateware with open tools: resources and clock of a unit, boards."""
