package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/boxfleet/boxfleet/integration/certs"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/sdk"
)

// link is a deployment whose parts all reach NATS over TCP.
type link struct {
	name string
	box  *sdk.Sandbox
}

// measureTLS measures execs of `true` in two deployments, without and with TLS. Samples of the two alternate.
func measureTLS(ctx context.Context, b *bench) (err error) {
	files, err := b.certificate()
	if err != nil {
		return err
	}
	var links []link
	for _, t := range []jetstream.TLS{{}, files} {
		name, r := "over TCP", b.role
		if t.CA != "" {
			name += " with TLS"
		}
		r.TCP, r.TLS, r.Dir = true, t, filepath.Join(b.dir, name)
		if err := os.MkdirAll(r.Dir, 0o700); err != nil {
			return err
		}
		d, err := b.deployWithRights(ctx, r, false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.end()) }()
		box, err := d.client.Create(ctx, spec())
		if err != nil {
			return err
		}
		links = append(links, link{name, box})
	}
	if err := b.linkRoundTrip(ctx, links); err != nil {
		return err
	}
	for _, parallel := range []int{8, 64} {
		if err := b.linkRate(ctx, links, parallel); err != nil {
			return err
		}
	}
	return nil
}

// certificate makes an authority, and a certificate for NATS and its clients.
func (b *bench) certificate() (jetstream.TLS, error) {
	dir := filepath.Join(b.dir, "certificates")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return jetstream.TLS{}, err
	}
	ca, err := certs.NewCA(dir, "ca")
	if err != nil {
		return jetstream.TLS{}, err
	}
	cert, key, err := ca.Issue(dir, "nats", time.Hour)
	return jetstream.TLS{CA: ca.File, Cert: cert, Key: key}, err
}

func (b *bench) linkRoundTrip(ctx context.Context, links []link) error {
	all := make([]measurement, len(links))
	for range b.pick(20, 4) {
		for i, l := range links {
			for n := range runWarmUp + runLength {
				took, err := timed(func() error { return execTrue(ctx, l.box) })
				if err != nil {
					return err
				}
				if n >= runWarmUp {
					all[i].Ours = append(all[i].Ours, took)
				}
			}
		}
	}
	for i, l := range links {
		all[i].Name, all[i].Unit = "exec of true, "+l.name, unitMilliseconds
		b.add(&all[i])
	}
	return nil
}

func (b *bench) linkRate(ctx context.Context, links []link, parallel int) error {
	all := make([]measurement, len(links))
	window := time.Duration(b.pick(2000, 600)) * time.Millisecond
	for range b.pick(5, 2) {
		for i, l := range links {
			rate, err := ratePerSecond(ctx, parallel, window, func(ctx context.Context, _ int) error {
				return execTrue(ctx, l.box)
			})
			if err != nil {
				return err
			}
			all[i].Ours = append(all[i].Ours, rate)
		}
	}
	for i, l := range links {
		all[i].Name, all[i].Unit, all[i].More = fmt.Sprintf("execs, %d at once, %s", parallel, l.name), "1/s", true
		b.add(&all[i])
	}
	return nil
}
