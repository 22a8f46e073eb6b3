//! What every server process shares: listening, signals, logs, small durable facts.
