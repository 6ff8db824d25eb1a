// Package docker is the only client of the Docker Engine. It takes and returns plain values, so no other package
// depends on the Engine's types, versions or error texts.
//
//	worker --> Engine --> one of its parts --> connection (deadline, translation of errors) --> fence --> socket
//
// [Engine] embeds its parts, which share one connection:
//
//	containers    container.go, copy.go         create, start, stop, remove and inspect containers; copy files
//	images        image.go, load.go             inspect, tag, remove, load and import images
//	pulls         pull.go, aside.go, take.go    get images from registries and other sources
//	networks      network.go                    create, remove and list networks
//	hostMark      host.go                       the volume that carries the host's id
//	eventStreams  events.go                     follow the engine's events
//	connection    connection.go, call.go        address, ping and description (info.go); every call's deadline
//
// The package enforces three rules, each in one place:
//
//   - Every call has a deadline, even if its context has no deadline (call.go). Calls to a hung engine fail with
//     unavailable.
//   - No request that could change the host is sent unless the fence allows it. The fence is the transport below the
//     Docker client, so no method can bypass the fence, and it checks at the last moment (fence.go).
//   - An error is translated once, completely (errors.go). A call fails with not_found only if the engine itself says
//     that the named object does not exist; any unclear error is unavailable.
//
// It imports protocol, imageref and the Docker client.
package docker
