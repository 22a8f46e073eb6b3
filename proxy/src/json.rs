//! The door of HTTP and JSON, for `curl` and for languages without gRPC. `openapi.json` describes it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use percolator_client::{Timestamp, limits};
use serde_json::{Map, Value, json};
use tonic::body::Body;
use tonic::codegen::http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use tonic::codegen::http::{Method, Request, Response, StatusCode};
use tonic::{Code, Status};

use crate::caller::Caller;
use crate::failure::{DOMAIN, Failure, Reason};
use crate::ranges::{self, RangeRequest};
use crate::transactions::{
    CellAt, CellChange, CellWrite, Chunk, KnownOutcome, Transactions, Values,
};
use crate::{json_text, named_bytes};

/// What the paths of this door begin with.
pub(crate) const PREFIX: &str = "/v1/";

/// The description of this door.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// The paths of this door below `/v1/`, each a method of its own; all are called with POST.
pub const METHODS: &[&str] = percolator_telemetry::names::proxy::METHODS;

/// A value in base64, and everything beside it.
const BODY_BYTES_MAX: usize = limits::VALUE_BYTES_MAX / 3 * 4 + (64 << 10);

/// Answers a request that is for neither door.
pub(crate) fn nothing_at(path: &str) -> Response<Body> {
    let message = format!("there is no {path}; {PREFIX}openapi.json lists what there is");
    failed_with(
        StatusCode::NOT_FOUND,
        &Failure::new(Reason::Invalid, message),
    )
}

/// Answers a request whose path begins with [`PREFIX`].
pub(crate) async fn answer(shared: Arc<Transactions>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let caller = Caller::new(&head.extensions, &head.headers);
    let path = head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    if path == "openapi.json" {
        return text(StatusCode::OK, "application/json", OPENAPI.into());
    }
    let Some(method) = METHODS.iter().find(|method| **method == path) else {
        return nothing_at(head.uri.path());
    };
    if head.method != Method::POST {
        let failure = Failure::new(
            Reason::Invalid,
            "call it with POST, and a JSON object as body",
        );
        let mut response = failed_with(StatusCode::METHOD_NOT_ALLOWED, &failure);
        let post = HeaderValue::from_static("POST");
        response.headers_mut().insert(ALLOW, post);
        return response;
    }
    let counted = shared.metrics.call(method, &caller);
    let result = match read(body).await {
        Ok(fields) => call(&shared, &caller, method, Fields(fields)).await,
        Err(failure) => Err(failure),
    };
    counted.ended(&result);
    match result {
        Ok(CallResponse::Object(object)) => {
            let bytes = Bytes::from(object.to_string() + "\n");
            text(StatusCode::OK, "application/json", bytes)
        }
        Ok(CallResponse::Text(bytes)) => text(StatusCode::OK, "application/json", bytes),
        Ok(CallResponse::Lines(chunks)) => lines(chunks),
        Err(failure) => failed(&failure),
    }
}

/// The response of a call.
enum CallResponse {
    Object(Value),
    /// One that has values.
    Text(Bytes),
    Lines(tokio::sync::mpsc::Receiver<Chunk>),
}

async fn call(
    shared: &Arc<Transactions>,
    caller: &Caller,
    method: &str,
    mut fields: Fields,
) -> Result<CallResponse, Failure> {
    match method {
        "begin" => return begin(shared, caller, fields).await.map(CallResponse::Text),
        "create_table" => {
            return create_table(shared, caller, fields)
                .await
                .map(CallResponse::Object);
        }
        _ => {}
    }
    let session = fields.text("session")?;
    let answer = match method {
        "get" | "get_for_update" => {
            let got = get(shared, method, &session, fields);
            return got.await.map(CallResponse::Text);
        }
        "batch_get" => {
            let read = batch_get(shared, &session, fields);
            return read.await.map(CallResponse::Text);
        }
        "scan" => {
            let chunks = scan(shared, &session, &mut fields).await?;
            return Ok(CallResponse::Lines(chunks));
        }
        "put" | "delete" | "write" => {
            let writes = writes_of(method, &mut fields)?;
            fields.end()?;
            shared.write(&session, &writes).await?;
            json!({})
        }
        "commit" => {
            let writes = fields.writes()?.unwrap_or_default();
            fields.end()?;
            json!({"commit_ts": shared.commit(caller, &session, writes).await?.to_string()})
        }
        "join" => {
            let joined = join(shared, caller, &session, fields);
            return joined.await.map(CallResponse::Text);
        }
        "finish" => {
            let writes = fields.writes()?.unwrap_or_default();
            fields.end()?;
            shared.finish(caller, &session, writes, Vec::new()).await?;
            json!({})
        }
        "rollback" => {
            fields.end()?;
            shared.rollback(&session)?;
            json!({})
        }
        _ => {
            fields.end()?;
            outcome_json(shared.outcome(&session).await?)
        }
    };
    Ok(CallResponse::Object(answer))
}

async fn batch_get(
    shared: &Transactions,
    session: &str,
    mut fields: Fields,
) -> Result<Bytes, Failure> {
    let cells = fields.cells()?;
    fields.end()?;
    let cells = cells.ok_or_else(|| invalid("cells is missing"))?;
    let read = shared.batch_get(session, &cells).await?;
    json_text::with_values(json!({}), Some(read))
}

/// The writes of a call of `put`, `delete` or `write`.
fn writes_of(method: &str, fields: &mut Fields) -> Result<Vec<CellWrite>, Failure> {
    let change = match method {
        "write" => {
            let writes = fields.writes()?;
            return writes.ok_or_else(|| invalid("writes is missing"));
        }
        "put" => {
            let cell = fields.cell()?;
            let change = CellChange::Put(fields.needed("value")?);
            CellWrite { cell, change }
        }
        _ => CellWrite {
            cell: fields.cell()?,
            change: CellChange::Delete,
        },
    };
    Ok(vec![change])
}

async fn begin(
    shared: &Transactions,
    caller: &Caller,
    mut fields: Fields,
) -> Result<Bytes, Failure> {
    let snapshot = fields.timestamp("snapshot")?;
    let cells = fields.cells()?;
    fields.end()?;
    let begun = shared
        .begin(caller, snapshot, cells.as_deref().unwrap_or_default())
        .await?;
    let start_ts = begun.start_ts.to_string();
    let answer = json!({"session": begun.session, "start_ts": start_ts});
    opened(shared, &begun.session, answer, cells.map(|_| begun.read))
}

/// The answer to the call that has begun a session, or joined with it.
fn opened(
    shared: &Transactions,
    session: &str,
    answer: Value,
    read: Option<Values>,
) -> Result<Bytes, Failure> {
    let text = json_text::with_values(answer, read);
    if text.is_err() {
        // Nobody has its token.
        let _ = shared.rollback(session);
    }
    text
}

async fn get(
    shared: &Transactions,
    method: &str,
    session: &str,
    mut fields: Fields,
) -> Result<Bytes, Failure> {
    let cell = fields.cell()?;
    fields.end()?;
    let mut read = if method == "get" {
        shared.get(session, &cell).await?
    } else {
        shared.get_for_update(session, &cell).await?
    };
    json_text::value(&mut read)
}

async fn create_table(
    shared: &Transactions,
    caller: &Caller,
    mut fields: Fields,
) -> Result<Value, Failure> {
    let table = fields.text("table")?;
    let split_at = fields.list("split_at", |fields| fields.needed("row"))?;
    fields.end()?;
    shared
        .create_table(caller, &table, &split_at.unwrap_or_default())
        .await?;
    Ok(json!({}))
}

async fn join(
    shared: &Arc<Transactions>,
    caller: &Caller,
    manager: &str,
    mut fields: Fields,
) -> Result<Bytes, Failure> {
    let cells = fields.cells()?;
    fields.end()?;
    let joined = shared
        .join(caller, manager, cells.as_deref().unwrap_or_default(), false)
        .await?;
    let answer = json!({
        "session": joined.session,
        "start_ts": joined.start_ts.to_string(),
        "idle_max_ms": u64::try_from(joined.idle_max.as_millis()).unwrap_or(u64::MAX),
    });
    opened(shared, &joined.session, answer, cells.map(|_| joined.read))
}

async fn scan(
    shared: &Arc<Transactions>,
    session: &str,
    fields: &mut Fields,
) -> Result<tokio::sync::mpsc::Receiver<Chunk>, Failure> {
    let table = fields.text("table")?;
    let asked = RangeRequest {
        start: fields.bytes("start")?.unwrap_or_default(),
        end: fields.bytes("end")?.unwrap_or_default(),
        prefix: fields.bytes("prefix")?.unwrap_or_default(),
        reverse: fields.flag("reverse")?,
        limit: fields.number("limit")?,
        limit_rows: fields.number("limit_rows")?,
    };
    fields.end()?;
    shared.scan(session, &table, ranges::range(asked)?).await
}

async fn read(body: Body) -> Result<Map<String, Value>, Failure> {
    let read = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let bytes = match read {
        Ok(read) => read.to_bytes(),
        Err(error) => {
            // The proxy's own bound, over all that is on its way.
            if let Some(status) = error.downcast_ref::<Status>()
                && status.code() == Code::ResourceExhausted
            {
                return Err(Failure::of(status));
            }
            let message =
                format!("the body can't be read: {error}; the limit is {BODY_BYTES_MAX} bytes");
            return Err(invalid(message));
        }
    };
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(invalid("the body is not a JSON object")),
        Err(error) => Err(invalid(format!("the body is not JSON: {error}"))),
    }
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Reason::Invalid, message)
}

/// The fields of a request that nobody has taken yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &str) -> Result<String, Failure> {
        match self.0.remove(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(invalid(format!("{name} is not a string"))),
            None => Err(self.missing(name)),
        }
    }

    /// A field that is needed isn't there: one of those that are may be a misspelled one.
    fn missing(&self, what: &str) -> Failure {
        let others: Vec<&str> = self.0.keys().map(String::as_str).collect();
        invalid(if others.is_empty() {
            format!("{what} is missing")
        } else {
            format!("{what} is missing; there are also: {}", others.join(", "))
        })
    }

    fn bytes(&mut self, name: &str) -> Result<Option<Bytes>, Failure> {
        named_bytes::take(&mut self.0, name)
    }

    fn needed(&mut self, name: &str) -> Result<Bytes, Failure> {
        let bytes = self.bytes(name)?;
        bytes.ok_or_else(|| self.missing(&format!("{name}, or {name}_base64,")))
    }

    fn flag(&mut self, name: &str) -> Result<bool, Failure> {
        match self.0.remove(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(invalid(format!("{name} is neither true nor false"))),
        }
    }

    fn number(&mut self, name: &str) -> Result<u64, Failure> {
        match self.0.remove(name) {
            None => Ok(0),
            Some(value) => value
                .as_u64()
                .ok_or_else(|| invalid(format!("{name} is not a number from 0 on"))),
        }
    }

    /// Timestamps are strings: many readers of JSON round large numbers.
    fn timestamp(&mut self, name: &str) -> Result<Option<Timestamp>, Failure> {
        let Some(value) = self.0.remove(name) else {
            return Ok(None);
        };
        let number = value.as_str().and_then(|text| text.parse().ok());
        match number {
            Some(number) => Ok(Some(Timestamp::from_u64(number))),
            None => Err(invalid(format!("{name} is not a timestamp in a string"))),
        }
    }

    fn cell(&mut self) -> Result<CellAt, Failure> {
        Ok(CellAt {
            table: self.text("table")?,
            row: self.needed("row")?,
            column: self.needed("column")?,
        })
    }

    fn cells(&mut self) -> Result<Option<Vec<CellAt>>, Failure> {
        self.list("cells", Self::cell)
    }

    fn writes(&mut self) -> Result<Option<Vec<CellWrite>>, Failure> {
        self.list("writes", |fields| {
            let cell = fields.cell()?;
            let (value, delete) = (fields.bytes("value")?, fields.flag("delete")?);
            let change = match (value, delete, fields.flag("lock")?) {
                (Some(value), false, false) => CellChange::Put(value),
                (None, true, false) => CellChange::Delete,
                (None, false, true) => CellChange::Lock,
                _ => {
                    let message = "it has a value, or \"delete\": true, or \"lock\": true, and not two of them";
                    return Err(invalid(message));
                }
            };
            Ok(CellWrite { cell, change })
        })
    }

    /// A list of objects. `None`: there is none.
    fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Self) -> Result<T, Failure>,
    ) -> Result<Option<Vec<T>>, Failure> {
        let list = match self.0.remove(name) {
            None => return Ok(None),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(invalid(format!("{name} is not a list"))),
        };
        let read_one = |object: Value| {
            let Value::Object(object) = object else {
                return Err(invalid("it is not an object"));
            };
            let mut fields = Self(object);
            let one = read(&mut fields)?;
            fields.end()?;
            Ok(one)
        };
        let list = list.into_iter().enumerate().map(|(number, object)| {
            read_one(object).map_err(|failure| {
                let message = format!("{name}[{number}]: {}", failure.message);
                let failure = invalid(message);
                if name == "writes" {
                    failure.with("write", number)
                } else {
                    failure
                }
            })
        });
        list.collect::<Result<_, _>>().map(Some)
    }

    /// A misspelled field is an error, not one that is missing.
    fn end(&self) -> Result<(), Failure> {
        match self.0.keys().next() {
            Some(name) => Err(invalid(format!("this call has no field {name}"))),
            None => Ok(()),
        }
    }
}

fn outcome_json(outcome: KnownOutcome) -> Value {
    match outcome {
        KnownOutcome::Committed(commit_ts) => {
            json!({"outcome": "committed", "commit_ts": commit_ts.to_string()})
        }
        KnownOutcome::Pending => json!({"outcome": "pending"}),
        KnownOutcome::RolledBack => json!({"outcome": "rolled back"}),
        KnownOutcome::Forgotten => json!({"outcome": "forgotten"}),
    }
}

/// A cell a line. An error is the last line.
fn lines(chunks: tokio::sync::mpsc::Receiver<Chunk>) -> Response<Body> {
    let frames = stream::unfold(Some(chunks), |chunks| async {
        let mut chunks = chunks?;
        let text = chunks.recv().await?.and_then(json_text::cells);
        let (text, chunks) = match text {
            Ok(text) => (text, Some(chunks)),
            Err(failure) => {
                let status = status_of(failure.reason.code());
                let line = failure_json(status, &failure).to_string() + "\n";
                (line.into(), None)
            }
        };
        Some((Ok::<_, Infallible>(Frame::data(text)), chunks))
    });
    response(
        StatusCode::OK,
        "application/x-ndjson",
        Body::new(StreamBody::new(frames)),
    )
}

/// As services of Google say it over HTTP.
fn failure_json(status: StatusCode, failure: &Failure) -> Value {
    json!({"error": {
        "code": status.as_u16(),
        "status": name_of(failure.reason.code()),
        "message": failure.message,
        "details": [{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": failure.reason.name(),
            "domain": DOMAIN,
            "metadata": failure.metadata,
        }],
    }})
}

/// What a call that failed is answered.
pub(crate) fn failed(failure: &Failure) -> Response<Body> {
    failed_with(status_of(failure.reason.code()), failure)
}

fn failed_with(status: StatusCode, failure: &Failure) -> Response<Body> {
    let bytes = failure_json(status, failure).to_string() + "\n";
    text(status, "application/json", bytes.into())
}

fn text(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Body> {
    response(status, kind, Body::new(Full::new(bytes)))
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The status of HTTP that stands for a code, by `google/rpc/code.proto`.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Aborted | Code::AlreadyExists => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A code by its name in `google/rpc/code.proto`.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::Aborted => "ABORTED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::Unknown => "UNKNOWN",
        _ => "INTERNAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    #[test]
    fn the_description_has_the_methods_and_no_others() {
        let described = described();
        let paths = described["paths"].as_object().unwrap();
        let mut expected: Vec<String> = METHODS.iter().map(|it| format!("{PREFIX}{it}")).collect();
        expected.push(format!("{PREFIX}openapi.json"));
        expected.sort();
        let mut found: Vec<String> = paths.keys().cloned().collect();
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_description_has_the_reasons_and_codes() {
        let described = described();
        let error = &described["components"]["schemas"]["Error"]["properties"]["error"];
        let reasons = &error["properties"]["details"]["items"]["properties"]["reason"]["enum"];
        let expected: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(*reasons, json!(expected));
        let codes = error["properties"]["status"]["enum"].as_array().unwrap();
        for reason in Reason::ALL {
            let name = json!(name_of(reason.code()));
            assert!(codes.contains(&name), "{reason:?}: {name}");
        }
    }

    #[test]
    fn every_code_of_a_reason_has_a_name() {
        for reason in Reason::ALL.iter().filter(|it| **it != Reason::Internal) {
            assert_ne!(name_of(reason.code()), "INTERNAL", "{reason:?}");
        }
    }

    #[tokio::test]
    async fn a_body_may_have_a_value_in_base64_and_not_much_more() {
        let body = |bytes: usize| {
            let text = format!("{{\"value_base64\":\"{}\"}}", "x".repeat(bytes));
            Body::new(Full::new(Bytes::from(text)))
        };
        let encoded = limits::VALUE_BYTES_MAX.div_ceil(3) * 4;
        assert_eq!(read(body(encoded)).await.unwrap().len(), 1);
        let failure = read(body(BODY_BYTES_MAX)).await.unwrap_err();
        assert!(failure.message.contains("limit"), "{failure:?}");
        assert!(read(Body::empty()).await.unwrap().is_empty());
    }
}
