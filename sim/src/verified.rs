//! Near the end of a run: what `percolator gc verify` would find at each tablet server.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_client::Error;
use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::VerifyPart as Part;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::cluster::Cluster;
use crate::invariants::NOTHING_OVERLOOKED;
use crate::recorder::Session;
use crate::run::keeper;
use crate::world::World;

/// Index and data agree, and the servers' own walk says so.
pub(crate) fn verified(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    keeper(world, cluster, "verifying what is stored", |session| {
        async move {
            for server in session.client.servers().await? {
                if server.role() == v1::Role::Tablet {
                    walk(&session, &server).await?;
                }
            }
            Ok(())
        }
        .boxed()
    });
    world.failure().is_none()
}

async fn walk(session: &Session, server: &v1::ServerInfo) -> Result<(), Error> {
    for part in [Part::Records, Part::Values, Part::Index] {
        let mut after = Bytes::new();
        loop {
            let ask = Ask::Verify(v1::VerifyRequest {
                to: Some(v1::Addressee {
                    server: server.server.clone(),
                    incarnation: server.incarnation,
                }),
                part: part.into(),
                after,
            });
            let answer = session.client.raw(&server.address, ask).await?;
            let Body::Verify(looked) = answer else {
                return Err(Error::Invalid(format!("another answer: {answer:?}")));
            };
            if let Some(found) = looked.findings.into_iter().next() {
                let cell = Cell::from(found.cell.unwrap_or_default());
                let ts = Timestamp::from_u64(found.ts);
                let wrong = format!("{}: {cell} at {ts}: {}", server.server, found.what);
                session.world.fail(NOTHING_OVERLOOKED, wrong);
                return Ok(());
            }
            if looked.resume.is_empty() {
                break;
            }
            after = looked.resume;
        }
    }
    Ok(())
}
