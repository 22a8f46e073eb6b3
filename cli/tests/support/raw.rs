//! Single requests to tablet servers.

use std::collections::HashMap;

use percolator_client::{Bytes, Client, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use percolator_wire::v1::tablets_client::TabletsClient;
use tokio_stream::StreamExt as _;

use super::Cluster;

/// A client that ends where it likes: single requests, without anybody who goes on with a transaction.
pub(crate) struct Raw {
    pub(crate) client: Client,
    addresses: HashMap<String, String>,
}

impl Raw {
    pub(crate) async fn connect(cluster: &Cluster) -> Self {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let servers = client.servers().await.expect("servers");
        Self {
            client,
            addresses: servers
                .into_iter()
                .map(|server| (server.server, server.address))
                .collect(),
        }
    }

    pub(crate) async fn timestamp(&self) -> Timestamp {
        self.client.timestamp().await.expect("a timestamp")
    }

    pub(crate) async fn table(&self, name: &str) -> percolator_client::Table {
        let tables = self.client.tables().await.expect("tables");
        let named = tables.into_iter().find(|table| table.name == name);
        named.expect("the table")
    }

    pub(crate) async fn ask(&self, table: &str, body: Ask) -> Body {
        let table = self.table(table).await;
        let tablet = &table.tablets[0];
        let address = &self.addresses[&tablet.server];
        let mut tablets = TabletsClient::connect(format!("http://{address}"))
            .await
            .expect("connected");
        let request = v1::Request {
            id: 1,
            tablets: vec![v1::TabletRef {
                id: tablet.id,
                epoch: tablet.epoch,
            }],
            body: Some(body),
            trace: None,
        };
        let requests = vec![request];
        let mut answers = tablets
            .serve(
                tokio_stream::iter([v1::RequestPack { requests }]).chain(tokio_stream::pending()),
            )
            .await
            .expect("a stream")
            .into_inner();
        let answer = tokio::time::timeout(super::TIMEOUT, answers.message())
            .await
            .expect("in time");
        let pack = answer.expect("no error").expect("an answer");
        let response = pack.responses.into_iter().next().expect("an answer");
        response.body.expect("a body")
    }

    pub(crate) async fn prewrite(
        &self,
        table: &str,
        row: &str,
        primary_table: u32,
        start_ts: Timestamp,
    ) {
        let answer = self.ask(
            table,
            Ask::Prewrite(v1::PrewriteRequest {
                start_ts: start_ts.as_u64(),
                primary: Some(v1::CellName {
                    table_id: primary_table,
                    row: row.as_bytes().to_vec().into(),
                    column: "c".into(),
                }),
                ttl_ms: 600_000,
                mutations: vec![v1::Mutation {
                    cell: Some(cell(row)),
                    kind: v1::LockKind::Put.into(),
                    value: Bytes::from_static(b"kept"),
                }],
                one_phase: None,
                generation: 0,
                chain: None,
            }),
        );
        match answer.await {
            Body::Prewrite(answer) if answer.rejections.is_empty() => {}
            other => panic!("{other:?}"),
        }
    }

    /// Writes the row to both tables, primary in a; and commits the primary, where that is said.
    pub(crate) async fn write(&self, row: &str, commits: bool) {
        let a = self.table("a").await.id;
        let start_ts = self.timestamp().await;
        self.prewrite("a", row, a, start_ts).await;
        self.prewrite("b", row, a, start_ts).await;
        if commits {
            let commit = v1::CommitRequest {
                start_ts: start_ts.as_u64(),
                commit_ts: self.timestamp().await.as_u64(),
                cells: vec![cell(row)],
            };
            match self.ask("a", Ask::Commit(commit)).await {
                Body::Commit(v1::CommitResponse {
                    result: Some(v1::commit_response::Result::Done(_)),
                }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn cell(row: &str) -> v1::CellRef {
    v1::CellRef {
        tablet: 0,
        row: row.as_bytes().to_vec().into(),
        column: "c".into(),
    }
}
