//! The PercolatorCluster resource: spec types and their validation, without a client.
