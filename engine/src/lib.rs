//! Ordered columns with atomic, durable batches and snapshots: sled, fjall and memory behind one trait.
