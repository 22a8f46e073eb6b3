//! Maps and sets for what nobody attacks by choosing names: a check of a history hashes each of them many times.

use foldhash::fast::FixedState;

/// A map.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A set.
pub(crate) type HashSet<K> = std::collections::HashSet<K, FixedState>;
