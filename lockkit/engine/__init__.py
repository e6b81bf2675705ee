"""The rules: who is granted, what is sent next, what is held, when it is renewed. No I/O."""
