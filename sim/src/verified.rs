//! Near the end of a run: what `percolator gc verify` would find at each tablet server, and that it looks at all there is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_client::{Error, ReportedServer, ServerRole};
use percolator_engine::Column;
use percolator_protocol::types::{Cell, Timestamp};
use percolator_tablet::index::Entry;
use percolator_wire::v1;
use percolator_wire::v1::VerifyPart as Part;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::cluster::Cluster;
use crate::invariants::NOTHING_OVERLOOKED;
use crate::recorder::Session;
use crate::run::keeper;
use crate::watch::{Content, pairs};
use crate::world::World;

/// What was removed from an engine by now is durable after this.
const WRITTEN: Duration = Duration::from_millis(200);

/// Index and data agree, and the servers' own walk says so.
pub(crate) fn verified(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    keeper(world, cluster, "verifying what is stored", |session| {
        async move {
            for server in session.client.servers().await? {
                if server.role == ServerRole::Tablet {
                    walk(&session, &server).await?;
                }
            }
            Ok(())
        }
        .boxed()
    });
    world.failure().is_none()
}

async fn walk(session: &Session, server: &ReportedServer) -> Result<(), Error> {
    for part in [Part::Records, Part::Values, Part::Index] {
        let before = items_of(&session.world, &server.server, part);
        let (mut after, mut seen) = (Bytes::new(), 0);
        loop {
            let ask = Ask::Verify(v1::VerifyRequest {
                to: Some(v1::Addressee {
                    server: server.server.clone(),
                    incarnation: server.incarnation.unwrap_or(0),
                }),
                part: part.into(),
                after,
            });
            let answer = session.client.raw(&server.address, ask).await?;
            let Body::Verify(looked) = answer else {
                return Err(Error::Invalid(format!("another answer: {answer:?}")));
            };
            if let Some(found) = looked.findings.into_iter().next() {
                let cell = found.cell.map(|cell| Cell::from(cell).to_string());
                let cell = cell.unwrap_or_else(|| "a finding without a cell".to_owned());
                let ts = Timestamp::from_u64(found.ts);
                let wrong = format!("{}: {cell} at {ts}: {}", server.server, found.what);
                session.world.fail(NOTHING_OVERLOOKED, wrong);
                return Ok(());
            }
            seen += looked.tablets.iter().map(|it| it.seen).sum::<u64>();
            if looked.resume.is_empty() {
                break;
            }
            after = looked.resume;
        }
        // Collection goes on meanwhile.
        session.world.sleep(WRITTEN).await;
        let behind = items_of(&session.world, &server.server, part);
        let there = before.intersection(&behind).count();
        if seen < there as u64 {
            let wrong = format!(
                "{}: {seen} of {part:?} were looked at, and {there} were there",
                server.server
            );
            session.world.fail(NOTHING_OVERLOOKED, wrong);
            return Ok(());
        }
    }
    Ok(())
}

/// What this server has made durable of a part, item by item.
fn items_of(world: &World, server: &str, part: Part) -> BTreeSet<Bytes> {
    let watch = world.watch.lock();
    let holding = watch.holdings().find(|holding| holding.server == server);
    holding.map_or_else(BTreeSet::new, |holding| items(holding.content, part))
}

fn items(content: &Content, part: Part) -> BTreeSet<Bytes> {
    let column = match part {
        Part::Values => Column::Data,
        Part::Index => Column::Garbage,
        Part::Records | Part::Unspecified => Column::Write,
    };
    let pairs = pairs(content, column);
    if column != Column::Garbage {
        return pairs.map(|(key, _)| key.clone()).collect();
    }
    let entries = pairs.filter_map(|(key, value)| Entry::decode(key, value.clone()).ok());
    let items = entries.flat_map(|entry| {
        let first = Entry::first_key(entry.of_fates, entry.ts);
        let items = entry.items.into_iter();
        items.map(move |item| [&first[..], &item.cell_key].concat().into())
    });
    items.collect()
}
