//! The pages of the metrics port. They don't keep the server alive.

use std::path::PathBuf;
use std::sync::Arc;

use percolator_engine::Engine;
use percolator_telemetry::endpoint::Pages;

use crate::service::Shared;

/// The pages of a server with this engine, whose data is in this folder.
pub(crate) fn pages(shared: &Arc<Shared>, engine: &Arc<dyn Engine>, folder: PathBuf) -> Pages {
    let metrics = shared.metrics.clone();
    let (watched, engine) = (Arc::downgrade(shared), Arc::downgrade(engine));
    let asked = watched.clone();
    Pages {
        registry: metrics.registry.clone(),
        role: "tablet",
        refresh: Box::new(move || {
            let (Some(shared), Some(engine)) = (watched.upgrade(), engine.upgrade()) else {
                return;
            };
            metrics.show(&shared.facts());
            metrics.disk_stalled.set(shared.stalled().as_secs_f64());
            metrics.show_engine(&engine.stats(), &folder);
        }),
        ready: Box::new(move || match asked.upgrade() {
            Some(shared) => shared.ready(),
            None => Err("the server is stopping".into()),
        }),
        healthy: Box::new(|| Ok(())),
    }
}
