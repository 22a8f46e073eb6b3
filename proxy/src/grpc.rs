//! The door of gRPC.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use percolator_client::{Range, TableId, Timestamp};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use percolator_wire::proxy::v1::outcome_response::Outcome;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::caller::Caller;
use crate::failure::{Failure, Reason};
use crate::ranges::{self, RangeRequest};
use crate::transactions::{CellAt, CellChange, CellWrite, KnownOutcome, Transactions, Values};

/// The service.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<Transactions>);

type RpcResult<T> = Result<Response<T>, Status>;

impl Service {
    /// Carries out a call, counts it, and answers it.
    async fn answer<T>(
        &self,
        method: &'static str,
        caller: &Caller,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> RpcResult<T> {
        let counted = self.0.metrics.call(method, caller);
        let result = call.await;
        counted.ended(&result);
        match result {
            Ok(answer) => Ok(Response::new(answer)),
            Err(failure) => Err(failure.status()),
        }
    }
}

#[tonic::async_trait]
impl v1::transactions_server::Transactions for Service {
    async fn begin(&self, request: Request<v1::BeginRequest>) -> RpcResult<v1::BeginResponse> {
        let caller = Caller::of(&request);
        let v1::BeginRequest { snapshot, cells } = request.into_inner();
        let snapshot = (snapshot != 0).then(|| Timestamp::from_u64(snapshot));
        let cells: Vec<CellAt> = cells.into_iter().map(CellAt::from).collect();
        let call = async {
            let begun = self.0.begin(&caller, snapshot, &cells).await?;
            let values = begun.read.values.into_iter();
            Ok(v1::BeginResponse {
                session: begun.session,
                start_ts: begun.start_ts.as_u64(),
                values: values.map(|value| v1::GetResponse { value }).collect(),
            })
        };
        self.answer("begin", &caller, call).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> RpcResult<v1::GetResponse> {
        let caller = Caller::of(&request);
        let (session, cell) = split(request.into_inner());
        let call = async {
            let read = self.0.get(&session, &cell).await?;
            Ok(one(read))
        };
        self.answer("get", &caller, call).await
    }

    async fn get_for_update(&self, request: Request<v1::GetRequest>) -> RpcResult<v1::GetResponse> {
        let caller = Caller::of(&request);
        let (session, cell) = split(request.into_inner());
        let call = async {
            let read = self.0.get_for_update(&session, &cell).await?;
            Ok(one(read))
        };
        self.answer("get_for_update", &caller, call).await
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> RpcResult<v1::BatchGetResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let cells: Vec<CellAt> = request.cells.into_iter().map(CellAt::from).collect();
        let call = async {
            let read = self.0.batch_get(&request.session, &cells).await?;
            let values = read
                .values
                .into_iter()
                .map(|value| v1::GetResponse { value });
            Ok(v1::BatchGetResponse {
                values: values.collect(),
            })
        };
        self.answer("batch_get", &caller, call).await
    }

    type ScanStream = Pin<Box<dyn Stream<Item = Result<v1::ScanResponse, Status>> + Send>>;

    async fn scan(&self, request: Request<v1::ScanRequest>) -> RpcResult<Self::ScanStream> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let call = async {
            let range = range(&request)?;
            self.0.scan(&request.session, &request.table, range).await
        };
        let chunks = self.answer("scan", &caller, call).await?.into_inner();
        let answers = ReceiverStream::new(chunks).map(|chunk| match chunk {
            Ok(entries) => Ok(v1::ScanResponse {
                cells: entries
                    .cells
                    .into_iter()
                    .map(|entry| v1::ScannedCell {
                        row: entry.row,
                        column: entry.column,
                        value: entry.value,
                    })
                    .collect(),
            }),
            Err(failure) => Err(failure.status()),
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn put(&self, request: Request<v1::PutRequest>) -> RpcResult<v1::PutResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let write = CellWrite {
            cell: cell(request.table, request.row, request.column),
            change: CellChange::Put(request.value),
        };
        let call = async {
            self.0.write(&request.session, &[write]).await?;
            Ok(v1::PutResponse {})
        };
        self.answer("put", &caller, call).await
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> RpcResult<v1::DeleteResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let write = CellWrite {
            cell: cell(request.table, request.row, request.column),
            change: CellChange::Delete,
        };
        let call = async {
            self.0.write(&request.session, &[write]).await?;
            Ok(v1::DeleteResponse {})
        };
        self.answer("delete", &caller, call).await
    }

    async fn write(&self, request: Request<v1::WriteRequest>) -> RpcResult<v1::WriteResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let call = async {
            let writes = writes(request.writes)?;
            self.0.write(&request.session, &writes).await?;
            Ok(v1::WriteResponse {})
        };
        self.answer("write", &caller, call).await
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> RpcResult<v1::CommitResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let call = async {
            let writes = writes(request.writes)?;
            let committed = self.0.commit(&caller, &request.session, writes).await?;
            Ok(v1::CommitResponse {
                commit_ts: committed.as_u64(),
            })
        };
        self.answer("commit", &caller, call).await
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> RpcResult<v1::RollbackResponse> {
        let caller = Caller::of(&request);
        let session = request.into_inner().session;
        let call = async {
            self.0.rollback(&session)?;
            Ok(v1::RollbackResponse {})
        };
        self.answer("rollback", &caller, call).await
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> RpcResult<v1::JoinResponse> {
        let caller = Caller::of(&request);
        let v1::JoinRequest {
            session,
            cells,
            passed_on,
        } = request.into_inner();
        let cells: Vec<CellAt> = cells.into_iter().map(CellAt::from).collect();
        let call = async {
            let joined = self.0.join(&caller, &session, &cells, passed_on).await?;
            let values = joined.read.values.into_iter();
            Ok(v1::JoinResponse {
                session: joined.session,
                start_ts: joined.start_ts.as_u64(),
                values: values.map(|value| v1::GetResponse { value }).collect(),
                idle_max_ms: u64::try_from(joined.idle_max.as_millis()).unwrap_or(u64::MAX),
            })
        };
        self.answer("join", &caller, call).await
    }

    async fn finish(&self, request: Request<v1::FinishRequest>) -> RpcResult<v1::FinishResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let call = async {
            let writes = writes(request.writes)?;
            let tables = request.tables.into_iter();
            let tables = tables.map(|table| (table.name, TableId(table.id)));
            self.0
                .finish(&caller, &request.session, writes, tables.collect())
                .await?;
            Ok(v1::FinishResponse {})
        };
        self.answer("finish", &caller, call).await
    }

    async fn outcome(
        &self,
        request: Request<v1::OutcomeRequest>,
    ) -> RpcResult<v1::OutcomeResponse> {
        let caller = Caller::of(&request);
        let session = request.into_inner().session;
        let call = async {
            let (outcome, commit_ts) = match self.0.outcome(&session).await? {
                KnownOutcome::Pending => (Outcome::Pending, 0),
                KnownOutcome::Committed(commit_ts) => (Outcome::Committed, commit_ts.as_u64()),
                KnownOutcome::RolledBack => (Outcome::RolledBack, 0),
                KnownOutcome::Forgotten => (Outcome::Forgotten, 0),
            };
            Ok(v1::OutcomeResponse {
                outcome: outcome.into(),
                commit_ts,
            })
        };
        self.answer("outcome", &caller, call).await
    }

    async fn create_table(
        &self,
        request: Request<v1::CreateTableRequest>,
    ) -> RpcResult<v1::CreateTableResponse> {
        let caller = Caller::of(&request);
        let v1::CreateTableRequest { table, split_at } = request.into_inner();
        let call = async {
            self.0.create_table(&caller, &table, &split_at).await?;
            Ok(v1::CreateTableResponse {})
        };
        self.answer("create_table", &caller, call).await
    }
}

impl From<v1::CellName> for CellAt {
    fn from(name: v1::CellName) -> Self {
        cell(name.table, name.row, name.column)
    }
}

fn cell(table: String, row: Bytes, column: Bytes) -> CellAt {
    CellAt { table, row, column }
}

/// The value of the only cell that was read.
fn one(read: Values) -> v1::GetResponse {
    let mut values = read.values;
    v1::GetResponse {
        value: values.pop().flatten(),
    }
}

fn split(request: v1::GetRequest) -> (String, CellAt) {
    let cell = cell(request.table, request.row, request.column);
    (request.session, cell)
}

fn writes(writes: Vec<v1::CellWrite>) -> Result<Vec<CellWrite>, Failure> {
    let writes = writes.into_iter().enumerate().map(|(number, write)| {
        let change = match write.change {
            Some(Change::Put(value)) => CellChange::Put(value),
            Some(Change::Delete(true)) => CellChange::Delete,
            Some(Change::Lock(true)) => CellChange::Lock,
            Some(Change::Delete(false) | Change::Lock(false)) | None => {
                let message = "a write has neither put, nor delete or lock, which is true";
                return Err(Failure::new(Reason::Invalid, message).with("write", number));
            }
        };
        let cell = cell(write.table, write.row, write.column);
        Ok(CellWrite { cell, change })
    });
    writes.collect()
}

fn range(request: &v1::ScanRequest) -> Result<Range, Failure> {
    ranges::range(RangeRequest {
        start: request.start.clone(),
        end: request.end.clone(),
        prefix: request.prefix.clone(),
        reverse: request.reverse,
        limit: request.limit,
        limit_rows: request.limit_rows,
    })
}
