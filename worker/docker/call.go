package docker

import (
	"context"
	"time"
)

// kind is the kind of object that a call reads or changes. The kind decides which "not found" errors mean that the
// object itself does not exist.
type kind string

const (
	kindEngine    kind = "engine"
	kindContainer kind = "container"
	kindNetwork   kind = "network"
	kindVolume    kind = "volume"
	kindImage     kind = "image"
)

// call describes one request to the engine.
type call struct {
	verb  string // such as "start" or "inspect"
	kind  kind
	name  string        // the object's name or id
	limit time.Duration // maximum duration
}

// subject describes the call in an error, such as "start container x".
func (c call) subject() string {
	s := c.verb + " " + string(c.kind)
	if c.name != "" {
		s += " " + c.name
	}
	return s
}

// do runs f with the call's deadline, and translates f's error. Every call of the Docker client runs inside do, except
// for the endless streams of events.
func (conn *connection) do(ctx context.Context, c call, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	limited, refused := withRefusal(limited)
	err := f(limited)
	if err := refused.get(); err != nil {
		return err
	}
	return translate(ctx, c, err)
}

// The time limit of a call depends on what the call does. A read is quick. A change may wait for locks and for the
// kernel. Starting and removing a container also wait for the runtime and the storage driver.
func (conn *connection) readLimit() time.Duration   { return conn.callTimeout / 3 }
func (conn *connection) changeLimit() time.Duration { return conn.callTimeout }
func (conn *connection) runLimit() time.Duration    { return 2 * conn.callTimeout }
