package docker

import (
	"context"
	"errors"
	"net/http"
)

// Unfenced is the fence of somebody who may always change the engine: a tool, a test, or a worker
// that asks for the [Engine.HostID] whose lock it is going to take.
func Unfenced() error { return nil }

// fence lets reading requests pass, and every other one only when the check agrees. It sits between
// the Docker client and the socket, so no method can go around it.
type fence struct {
	check func() error
	next  http.RoundTripper
}

// refusal carries the fence's error out of a call. The Docker client rewrites some errors into its
// own text, so the cause does not travel through it.
type refusal struct{ err error }

type refusalKey struct{}

// errFenced is what the Docker client sees of a refusal.
var errFenced = errors.New("refused by the fence")

// RoundTrip implements [http.RoundTripper].
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return f.next.RoundTrip(req)
	}
	if err := f.check(); err != nil {
		if r, ok := req.Context().Value(refusalKey{}).(*refusal); ok {
			r.err = err
		}
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errFenced
	}
	return f.next.RoundTrip(req)
}

func withRefusal(ctx context.Context) (context.Context, *refusal) {
	r := &refusal{}
	return context.WithValue(ctx, refusalKey{}, r), r
}
