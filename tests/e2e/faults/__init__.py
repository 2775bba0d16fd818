"""What is broken on purpose: pods that trip over it, and programs that break for the tests."""
