//! Against an API server that answers as scripted. `e2e` uses a real one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// How the API server answers a request.
#[derive(Clone, Debug)]
enum Answer {
    Object(Value),
    /// The object of the first request that wrote, with this version.
    Written(&'static str),
    Code(u16),
    /// The connection ends.
    Lost,
    Never,
}

#[derive(Clone, Default)]
struct ApiServer {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// The method and the body of each request.
    requests: Arc<Mutex<Vec<(Method, Value)>>>,
}

impl ApiServer {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            requests: Arc::default(),
        }
    }

    fn register(&self) -> KubeRegister {
        let server = self.clone();
        let service = tower::service_fn(move |request| server.clone().answer(request));
        KubeRegister::over(Client::new(service, "space"), "space", "tso")
    }

    async fn answer(self, request: Request<Body>) -> std::io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        self.requests.lock().unwrap().push((head.method, body));
        let answer = self.answers.lock().unwrap().pop_front();
        let (code, object) = match answer.expect("no more requests than that") {
            Answer::Object(object) => (200, object),
            Answer::Written(version) => (200, self.written(version)),
            Answer::Code(code) => (code, json!({"code": code, "message": "so it is"})),
            Answer::Lost => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Answer::Never => std::future::pending().await,
        };
        let body = Body::from(object.to_string().into_bytes());
        Ok(Response::builder().status(code).body(body).unwrap())
    }

    fn written(&self, version: &str) -> Value {
        let requests = self.requests.lock().unwrap();
        let mut writes = requests.iter().filter(|(method, _)| *method != Method::GET);
        let mut object = writes.next().expect("a write").1.clone();
        object["metadata"]["resourceVersion"] = version.into();
        object
    }

    fn methods(&self) -> Vec<Method> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|(method, _)| method.clone()).collect()
    }
}

fn object(version: &str, write: u8) -> Answer {
    let record = ByteString(StoredRecord::encode(WriteId([write; 16]), &[b"theirs"]));
    let metadata = json!({"name": "tso", "resourceVersion": version});
    Answer::Object(json!({"metadata": metadata, "binaryData": {KEY: record}}))
}

const FIVE: Option<RegisterVersion> = Some(RegisterVersion(5));

async fn swap(
    answers: impl IntoIterator<Item = Answer>,
    expected: Option<RegisterVersion>,
) -> (Result<RegisterVersion, SwapError>, ApiServer) {
    let server = ApiServer::new(answers);
    let result = server.register().swap(expected, b"ours".to_vec()).await;
    assert!(server.answers.lock().unwrap().is_empty(), "{result:?}");
    (result, server)
}

#[tokio::test]
async fn a_swap_is_one_patch_with_the_expected_version() {
    let (result, server) = swap([Answer::Written("6")], FIVE).await;
    assert_eq!(result, Ok(RegisterVersion(6)));
    assert_eq!(server.methods(), [Method::PATCH]);
    let (_, patch) = server.requests.lock().unwrap()[0].clone();
    let metadata = json!({"resourceVersion": "5"});
    assert_eq!(patch["metadata"], metadata, "and nothing else of it");
    assert_eq!(
        patch["binaryData"].as_object().map(|data| data.len()),
        Some(1)
    );
}

#[tokio::test]
async fn the_first_swap_creates_the_object_or_fills_it() {
    let (result, server) = swap([Answer::Code(404), Answer::Written("6")], None).await;
    assert_eq!(result, Ok(RegisterVersion(6)));
    assert_eq!(server.methods(), [Method::GET, Method::POST]);

    let empty = Answer::Object(json!({"metadata": {"name": "tso", "resourceVersion": "3"}}));
    let (result, server) = swap([empty, Answer::Written("6")], None).await;
    assert_eq!(result, Ok(RegisterVersion(6)));
    assert_eq!(server.methods(), [Method::GET, Method::PATCH]);
    let (_, patch) = server.requests.lock().unwrap()[1].clone();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "3"}));
}

#[tokio::test]
async fn what_the_api_server_does_not_say_is_unknown() {
    for answer in [500, 502, 503, 504, 408, 499] {
        let (result, server) = swap([Answer::Code(answer)], FIVE).await;
        let is_honest = matches!(result, Err(SwapError::Unknown { .. }));
        assert!(is_honest, "{answer}: {result:?}");
        assert_eq!(server.methods(), [Method::PATCH], "and is not asked again");
    }
    for answer in [
        Answer::Lost,
        Answer::Object(json!({})),
        Answer::Object(json!([])),
    ] {
        let (result, _) = swap([answer.clone()], FIVE).await;
        let is_honest = matches!(result, Err(SwapError::Unknown { .. }));
        assert!(is_honest, "{answer:?}: {result:?}");
    }
    let (result, _) = swap([Answer::Code(404), Answer::Lost], None).await;
    assert!(
        matches!(result, Err(SwapError::Unknown { .. })),
        "{result:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_not_waited_for() {
    let (result, _) = swap([Answer::Never], FIVE).await;
    assert!(
        matches!(result, Err(SwapError::Unknown { .. })),
        "{result:?}"
    );
    let server = ApiServer::new([Answer::Never]);
    let result = server.register().load().await;
    let is_unavailable = matches!(result, Err(LoadError::Unavailable { .. }));
    assert!(is_unavailable, "{result:?}");
    // Of a first swap nothing was written yet.
    let (result, _) = swap([Answer::Never], None).await;
    let is_certain = matches!(result, Err(SwapError::Unavailable { .. }));
    assert!(is_certain, "{result:?}");
}

#[tokio::test]
async fn what_is_refused_did_not_happen() {
    for code in [400, 405, 413, 415, 422] {
        let (result, _) = swap([Answer::Code(code)], FIVE).await;
        let is_refused = matches!(result, Err(SwapError::Refused { .. }));
        assert!(is_refused, "{code}: {result:?}");
    }
    for code in [401, 403, 429] {
        let (result, _) = swap([Answer::Code(code)], FIVE).await;
        let is_unavailable = matches!(result, Err(SwapError::Unavailable { .. }));
        assert!(is_unavailable, "{code}: {result:?}");
        let loaded = ApiServer::new([Answer::Code(code)]).register().load().await;
        let is_unavailable = matches!(loaded, Err(LoadError::Unavailable { .. }));
        assert!(is_unavailable, "{code}: {loaded:?}");
    }
}

#[tokio::test]
async fn a_conflict_is_another_write_and_not_ours() {
    let conflict = Answer::Code(409);
    let (result, _) = swap([conflict.clone(), object("6", 9)], FIVE).await;
    let Err(SwapError::Conflict { found, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(found, Some(RegisterVersion(6)));
    // A proxy has sent the request twice, and this is the second one's answer.
    let (result, _) = swap([conflict.clone(), Answer::Written("6")], FIVE).await;
    assert_eq!(result, Ok(RegisterVersion(6)));
    let (result, server) = swap(
        [Answer::Code(404), conflict.clone(), Answer::Written("6")],
        None,
    )
    .await;
    assert_eq!(result, Ok(RegisterVersion(6)));
    assert_eq!(server.methods(), [Method::GET, Method::POST, Method::GET]);
    // Which of both it is can't be asked.
    let (result, _) = swap([conflict.clone(), Answer::Code(503)], FIVE).await;
    assert!(
        matches!(result, Err(SwapError::Unknown { .. })),
        "{result:?}"
    );
    // About something else, as a quota.
    let (result, _) = swap([conflict, object("5", 9)], FIVE).await;
    let is_unavailable = matches!(result, Err(SwapError::Unavailable { .. }));
    assert!(is_unavailable, "{result:?}");
}

#[tokio::test]
async fn an_object_that_is_gone_is_a_conflict_and_not_a_first_time() {
    let gone = [Answer::Code(404), Answer::Code(404)];
    let (result, _) = swap(gone.clone(), FIVE).await;
    assert!(
        matches!(result, Err(SwapError::Conflict { found: None, .. })),
        "{result:?}"
    );
    // A handle that has seen its value doesn't take that for a first time.
    let server = ApiServer::new([object("5", 9), Answer::Code(404), object("4", 9)]);
    let register = server.register();
    register.load().await.unwrap().expect("a value");
    for _ in 0..2 {
        let result = register.load().await;
        let is_damaged = matches!(result, Err(LoadError::Damaged { .. }));
        assert!(is_damaged, "{result:?}");
    }
}

#[tokio::test]
async fn any_version_is_no_version_to_expect() {
    let (result, server) = swap([object("5", 9)], Some(RegisterVersion(0))).await;
    let is_conflict = matches!(result, Err(SwapError::Conflict { .. }));
    assert!(is_conflict, "{result:?}");
    assert_eq!(server.methods(), [Method::GET], "nothing was sent");
}

#[tokio::test]
async fn what_somebody_has_edited_is_damaged() {
    let broken = json!({"metadata": {"resourceVersion": "5"}, "binaryData": {KEY: "aGVsbG8="}});
    let opaque = json!({"metadata": {"resourceVersion": "abc"}});
    for object in [broken, opaque] {
        let server = ApiServer::new([Answer::Object(object.clone())]);
        let result = server.register().load().await;
        let is_damaged = matches!(result, Err(LoadError::Damaged { .. }));
        assert!(is_damaged, "{object}: {result:?}");
    }
}

#[tokio::test]
async fn without_an_api_server_nothing_is_sent() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let config = Config::new(format!("http://{address}").parse().unwrap());
    let register = KubeRegister::new(config, "space", "tso").unwrap();
    let result = register.swap(FIVE, Vec::new()).await;
    let is_certain = matches!(result, Err(SwapError::Unavailable { .. }));
    assert!(is_certain, "{result:?}");
}

/// The client's own way is to try them again for minutes.
#[tokio::test]
async fn the_client_tries_nothing_again() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        let mut answered = 0;
        // Until the client ends the connection.
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            text += &String::from_utf8_lossy(&buffer[..read]);
            // A request may come in pieces: its body ends as a JSON object does.
            if text.ends_with('}') {
                let answer = "HTTP/1.1 503 Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
                client.write_all(answer.as_bytes()).unwrap();
                answered += 1;
            }
        }
        answered
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    let register = KubeRegister::new(config, "space", "tso").unwrap();
    let result = register.swap(FIVE, Vec::new()).await;
    assert!(
        matches!(result, Err(SwapError::Unknown { .. })),
        "{result:?}"
    );
    drop(register);
    let count = tokio::task::spawn_blocking(|| server.join().unwrap());
    assert_eq!(count.await.unwrap(), 1);
}
