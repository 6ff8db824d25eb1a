// Package epoch tracks whether the engine's process may have been replaced. It also ends the pauses between retries
// when the engine or NATS is back.
//
//	engine's event stream ──► Epoch     did a container end by itself, or with its engine?
//	engine or NATS is back ──► Recovery  retry now instead of after the pause
//
// The package imports protocol.
package epoch
