"""Hand-written fakes, shared by the tests of all rooms."""
