"""What the tests stand on: a real broker on free ports, and fakes that are held to the same suites as the real parts."""
