// Package docker is the one client of the Docker Engine. It takes and returns plain values, so that
// nobody else knows the Engine's types, its versions, or how it says no.
//
//	worker --> Engine --> call (deadline, translation) --> fence --> socket
//
// Three rules are kept here, each in one place:
//
//   - Every call has a deadline, whatever context it was given (call.go). A hung engine is answered
//     as unavailable.
//   - Nothing that could change the host leaves without the fence's consent, asked at the last
//     moment, below the client (fence.go). A method cannot forget it.
//   - An error is translated once, completely (errors.go). "It is gone" is said only where the
//     engine itself named the object and denied it; everything unclear is "unavailable".
//
// It imports protocol, imageref and the Docker client.
package docker
