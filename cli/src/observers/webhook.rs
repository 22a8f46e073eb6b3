//! A URL that is called for each change. Its calls are signed as the Standard Webhooks specification (version 1.0) says:
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>. Receivers can use its
//! libraries.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_STANDARD, Engine};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percolator_client::{Change, HandlerError, OpenTxn};
use ring::{digest, hmac};

use super::operations::{Operation, introduction};
use crate::errors::Usage;

/// The longest response that is read.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// What is reported of the response to a call that failed.
const REPORTED_BYTES_MAX: usize = 200;
/// Connections that wait for the next call, and for how long.
const IDLE_CONNECTIONS_MAX: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The least of a key, as the specification says.
const KEY_BYTES_MIN: usize = 24;
/// Where the key is, if it is in no file.
pub(super) const KEY_VARIABLE: &str = "PERCOLATOR_WEBHOOK_KEY";
/// What a key in base64 begins with.
const KEY_PREFIX: &str = "whsec_";

/// See [`super::RunArgs`].
pub(super) struct Webhook {
    url: Uri,
    key: hmac::Key,
    timeout: Duration,
    caller: Caller,
}

/// By what the URL is called.
#[derive(Debug)]
enum Caller {
    Http(Client<HttpConnector, Full<Bytes>>),
    Https(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Caller {
    fn of(url: &Uri) -> anyhow::Result<Self> {
        let mut client = Client::builder(TokioExecutor::new());
        client
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX);
        if url.scheme_str() != Some("https") {
            return Ok(Self::Http(client.build_http()));
        }
        let connector = HttpsConnectorBuilder::new().with_native_roots();
        let connector = connector.map_err(|error| {
            let why = "the certificates that --webhook's server is checked by";
            anyhow::anyhow!("{why} can't be read: {error}. SSL_CERT_FILE may name them")
        })?;
        let connector = connector.https_only().enable_http1().build();
        Ok(Self::Https(client.build(connector)))
    }

    async fn request(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        match self {
            Self::Http(client) => client.request(request).await,
            Self::Https(client) => client.request(request).await,
        }
    }
}

impl Webhook {
    /// `key_file`: where the key is; otherwise it is in the environment.
    pub(super) fn new(
        url: &str,
        key_file: Option<&Path>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let url = read_url(url)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &find_key(key_file)?);
        let caller = Caller::of(&url)?;
        Ok(Self {
            url,
            key,
            timeout,
            caller,
        })
    }

    /// Calls it for one change.
    pub(super) async fn run(&self, change: Change, txn: OpenTxn) -> Result<(), HandlerError> {
        let called = tokio::time::timeout(self.timeout, self.call(&change, &txn)).await;
        let answer = called.map_err(|_| format!("it took longer than {:?}", self.timeout))??;
        let answer = std::str::from_utf8(&answer).map_err(|_| "its answer is not UTF-8")?;
        for line in answer.lines().filter(|line| !line.trim().is_empty()) {
            let operation = Operation::read(line)?;
            if operation.is_get() {
                return Err(
                    "it answers with a get, which a webhook can't have an answer to".into(),
                );
            }
            operation.carry_out(&change, &txn).await?;
        }
        Ok(())
    }

    async fn call(&self, change: &Change, txn: &OpenTxn) -> Result<Bytes, HandlerError> {
        let body = introduction(change, txn).to_string();
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let id = message_id(change);
        let signature = sign(&self.key, &id, now, &body);
        let mut request = Request::builder();
        if let Some(traceparent) = txn.traceparent() {
            request = request.header("traceparent", traceparent);
        }
        let request = request
            .method(Method::POST)
            .uri(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now.to_string())
            .header("webhook-signature", signature)
            .body(Full::new(Bytes::from(body)))?;
        let response = self.caller.request(request).await;
        let response = response.map_err(|error| {
            let host = self.url.authority().map_or("", |it| it.as_str());
            // With all causes: the last one says what it is.
            format!("{host} can't be called: {:#}", anyhow::Error::from(error))
        })?;
        let status = response.status();
        let headers = response.headers();
        let says_its_end =
            headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING);
        let answer = Limited::new(response.into_body(), RESPONSE_BYTES_MAX);
        let answer = answer.collect().await?.to_bytes();
        if status.is_success() && !says_its_end && !answer.is_empty() {
            // A receiver that died within it looks the same.
            return Err(
                "its answer has neither a length nor chunks, so that its end isn't known".into(),
            );
        }
        if status.is_success() {
            return Ok(answer);
        }
        let reported = &answer[..answer.len().min(REPORTED_BYTES_MAX)];
        let reported = String::from_utf8_lossy(reported);
        Err(format!("it answered {status}: {:?}", reported.trim()).into())
    }
}

fn read_url(url: &str) -> anyhow::Result<Uri> {
    let wrong = |why: &str| Usage(format!("--webhook {url:?} {why}"));
    let uri: Uri = url.parse().map_err(|_| wrong("is no URL"))?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_web || uri.host().is_none_or(str::is_empty) {
        return Err(wrong("is no URL that begins with http:// or https://").into());
    }
    if uri.authority().is_some_and(|it| it.as_str().contains('@')) {
        // The words must not repeat a password.
        let why = "the URL of --webhook has a user in it, which is not sent: calls are signed";
        return Err(Usage(why.to_owned()).into());
    }
    Ok(uri)
}

fn find_key(file: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let (text, origin) = match file {
        Some(file) => {
            let origin = file.display().to_string();
            let read = std::fs::read_to_string(file);
            (
                read.map_err(|error| Usage(format!("{origin}: {error}")))?,
                origin,
            )
        }
        None => {
            let missing = || {
                Usage(format!(
                    "a webhook needs a key: --webhook-key-file, or {KEY_VARIABLE}"
                ))
            };
            let text = std::env::var(KEY_VARIABLE).map_err(|_| missing())?;
            (text, KEY_VARIABLE.to_owned())
        }
    };
    let key = read_key(text.trim()).map_err(|why| Usage(format!("{origin}: {why}")))?;
    Ok(key)
}

fn read_key(text: &str) -> Result<Vec<u8>, String> {
    let key = match text.strip_prefix(KEY_PREFIX) {
        Some(base64) => {
            let decoded = BASE64_STANDARD.decode(base64);
            decoded.map_err(|error| format!("no base64 behind {KEY_PREFIX}: {error}"))?
        }
        None => text.as_bytes().to_vec(),
    };
    if key.len() < KEY_BYTES_MIN {
        return Err(format!("a key has {KEY_BYTES_MIN} bytes at least"));
    }
    Ok(key)
}

/// The same for each call for a change with the same value: a run that begins anew may find a newer one. Where a value comes back,
/// what was done for it before was undone by the one between.
fn message_id(change: &Change) -> String {
    let mut digest = digest::Context::new(&digest::SHA256);
    for part in [change.table.as_bytes(), &change.column, &change.row] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(&change.changed_at.as_u64().to_be_bytes());
    digest.update(&change.values_before.to_be_bytes());
    digest.update(&[u8::from(change.value.is_some())]);
    digest.update(change.value.as_deref().unwrap_or_default());
    let digest = digest.finish();
    let hex = digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"));
    format!("msg_{}", hex.collect::<String>())
}

fn sign(key: &hmac::Key, id: &str, seconds: u64, body: &str) -> String {
    let tag = hmac::sign(key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(tag))
}

#[cfg(test)]
mod tests {
    use percolator_client::{Chain, Timestamp};

    use super::*;

    #[test]
    fn the_signature_is_that_of_the_specifications_example() {
        let key = read_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let (id, at) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        let signature = sign(&key, id, at, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn another_value_is_another_message() {
        let change = |value: Option<&'static str>| Change {
            table: "t".to_owned(),
            row: "r".into(),
            column: "c".into(),
            value: value.map(Bytes::from),
            changed_at: Timestamp::from_u64(5),
            values_before: 0,
            chain: Chain::default(),
        };
        let first = message_id(&change(Some("v5")));
        assert_eq!(message_id(&change(Some("v5"))), first);
        for other in [Some("v9"), Some(""), None] {
            assert_ne!(message_id(&change(other)), first);
        }
        assert_ne!(message_id(&change(Some(""))), message_id(&change(None)));
        // It was another one meanwhile.
        let again = Change {
            values_before: 2,
            ..change(Some("v5"))
        };
        assert_ne!(message_id(&again), first);
    }

    #[test]
    fn keys_and_urls_of_another_form_are_refused() {
        assert!(read_key("short").is_err() && read_key("whsec_!").is_err());
        assert_eq!(read_key(&"k".repeat(24)), Ok(vec![b'k'; 24]));
        for url in [
            "",
            "/path",
            "ftp://host/",
            "http://",
            "http://joe:secret@host/",
        ] {
            assert!(read_url(url).is_err(), "{url}");
        }
        for url in ["http://127.0.0.1:1/a?b=c", "https://example.com"] {
            assert!(read_url(url).is_ok(), "{url}");
        }
    }
}
