//! Generates the messages and the client from `proto/`, without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // Tests answer as etcd would not.
        .build_server(true)
        .compile_fds(descriptors)?;
    Ok(())
}
