//! The agent with the policies that Wave ships and the gRPC front.

fn main() -> std::process::ExitCode {
    wave_grpc::main_with(wave_agent::Registry::shipped())
}
