//! A proxy as people use it who have no `.proto`: it describes itself, to grpcurl for example.

use std::process::Command;

use crate::support::sessions::with_table;
use crate::support::{Cluster, CommandOutput, block_on, output_of};
use serde_json::{Value, json};

/// Where the program is.
const VARIABLE: &str = "PERCOLATOR_GRPCURL";
const SERVICE: &str = "percolator.proxy.v1.Transactions";

struct Grpcurl {
    program: String,
    proxy: String,
}

impl Grpcurl {
    fn run(&self, arguments: &[&str], named: &[&str]) -> CommandOutput {
        let mut command = Command::new(&self.program);
        command
            .arg("-plaintext")
            .args(arguments)
            .arg(&self.proxy)
            .args(named);
        output_of(command)
    }

    fn call(&self, method: &str, request: &Value) -> CommandOutput {
        let method = format!("{SERVICE}/{method}");
        self.run(&["-d", &request.to_string()], &[&method])
    }

    fn answer(&self, method: &str, request: &Value) -> Value {
        let said = self.call(method, request).ok();
        serde_json::from_str(&said).expect("JSON")
    }
}

#[test]
fn a_transaction_needs_no_description_at_hand() {
    let Ok(program) = std::env::var(VARIABLE) else {
        eprintln!("SKIPPED: there is no grpcurl ({VARIABLE}); `cargo xtask test unit` builds it");
        return;
    };
    let cluster = Cluster::threads();
    let proxy = cluster.proxy();
    let grpcurl = Grpcurl { program, proxy };
    let listed = grpcurl.run(&[], &["list"]).ok();
    for service in [SERVICE, "grpc.health.v1.Health"] {
        assert!(
            listed.lines().any(|line| line == service),
            "{service}: {listed}"
        );
    }
    let described = grpcurl.run(&[], &["describe", SERVICE]).ok();
    assert!(described.contains("rpc GetForUpdate ("), "{described}");
    let check = grpcurl.run(&[], &["grpc.health.v1.Health/Check"]).ok();
    assert!(check.contains("\"SERVING\""), "{check}");

    // Bytes are base64 in JSON of protobuf.
    let (row, column, value) = ("Ym9i", "Yw==", "MTA=");
    assert_eq!(
        grpcurl.answer("CreateTable", &json!({"table": "t"})),
        json!({})
    );
    let session = grpcurl.answer("Begin", &json!({}))["session"].clone();
    let write = json!({"table": "t", "row": row, "column": column, "put": value});
    let commit = json!({"session": session, "writes": [write]});
    let committed = grpcurl.answer("Commit", &commit);
    assert!(committed["commitTs"].is_string(), "{committed}");
    let session = grpcurl.answer("Begin", &json!({}))["session"].clone();
    let get = json!({"session": session, "table": "t", "row": row, "column": column});
    assert_eq!(grpcurl.answer("Get", &get), json!({"value": value}));
    let scan = json!({"session": session, "table": "t"});
    let cell = json!({"row": row, "column": column, "value": value});
    assert_eq!(grpcurl.answer("Scan", &scan), json!({"cells": [cell]}));

    let refused = grpcurl.call("Get", &json!({"session": session, "table": "no"}));
    assert!(!refused.status.success());
    for words in ["NotFound", "google.rpc.ErrorInfo", "UNKNOWN_TABLE"] {
        assert!(refused.err.contains(words), "{words}: {refused:?}");
    }
}

#[test]
fn it_describes_itself() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    let cluster = with_table();
    block_on(async {
        let address = format!("http://{}", cluster.proxy());
        let endpoint = tonic::transport::Endpoint::new(address).expect("an address");
        let channel = endpoint.connect().await.expect("connected");
        let mut grpc = ServerReflectionClient::new(channel.clone());
        let mut ask = async |asked| -> ServerReflectionResponse {
            let request = ServerReflectionRequest {
                message_request: Some(asked),
                ..ServerReflectionRequest::default()
            };
            let asked = tokio_stream::iter([request]);
            let mut answers = grpc
                .server_reflection_info(asked)
                .await
                .unwrap()
                .into_inner();
            answers.message().await.unwrap().expect("an answer")
        };
        let listed = ask(MessageRequest::ListServices(String::new())).await;
        let Some(MessageResponse::ListServicesResponse(listed)) = listed.message_response else {
            panic!("{listed:?}");
        };
        let names: Vec<&str> = listed.service.iter().map(|it| it.name.as_str()).collect();
        assert!(
            names.contains(&"percolator.proxy.v1.Transactions"),
            "{names:?}"
        );
        let symbol = "percolator.proxy.v1.Transactions.GetForUpdate".to_owned();
        let found = ask(MessageRequest::FileContainingSymbol(symbol)).await;
        let is_file = matches!(
            found.message_response,
            Some(MessageResponse::FileDescriptorResponse(_))
        );
        assert!(is_file, "{found:?}");
        // As programs ask that are older than the first version.
        use tonic_reflection::pb::v1alpha as earlier;
        use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest as Asked;
        let asked = earlier::ServerReflectionRequest {
            message_request: Some(Asked::ListServices(String::new())),
            ..earlier::ServerReflectionRequest::default()
        };
        let mut grpc =
            earlier::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let answers = grpc
            .server_reflection_info(tokio_stream::iter([asked]))
            .await;
        let listed = answers.unwrap().into_inner().message().await.unwrap();
        let listed = format!("{listed:?}");
        assert!(
            listed.contains("percolator.proxy.v1.Transactions"),
            "{listed}"
        );
    });
}
