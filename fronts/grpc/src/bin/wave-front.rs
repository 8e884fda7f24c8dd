//! An agent with the shipped policies and the front for gRPC.

fn main() -> std::process::ExitCode {
    wave_grpc::main_with(wave_agent::Registry::shipped())
}
