"""Modules that stand in for packages of the Neuron SDK under their own names."""
