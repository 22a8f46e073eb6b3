//! The timestamp oracle: strictly increasing timestamps, across restarts and clock trouble.
