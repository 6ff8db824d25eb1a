package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// failed translates an error. It uses no text of a remote server: the server may quote any data that it can read.
func (i *Image) failed(ctx context.Context, err error) error {
	registry := imageref.Registry(i.ref)
	fail := func(code protocol.Code, reason, format string, args ...any) error {
		return protocol.Errorf(code, reason, "pull image %s: %s", i.ref, fmt.Sprintf(format, args...))
	}
	var response *transport.Error
	var certificate *x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var network net.Error
	switch {
	case ctx.Err() != nil:
		return fail(protocol.Cancelled, "", "the pull was cancelled")
	case errors.Is(err, errNotPublic):
		return fail(protocol.PermissionDenied, protocol.ReasonPolicyDenied,
			"the registry %s has, or leads to, an address that is not public; "+
				"the host's operator can allow it in worker.images.registries", registry)
	case errors.Is(err, errNotHTTPS):
		return fail(protocol.PermissionDenied, protocol.ReasonPolicyDenied,
			"the registry %s leads to a server without TLS; "+
				"the host's operator can allow it in worker.images.registries", registry)
	case errors.Is(err, errCredentials):
		return fail(protocol.PermissionDenied, protocol.ReasonImageDenied,
			"the registry %s would make the worker send its credentials to another host; "+
				"the host's operator can allow it in worker.images.registries", registry)
	case errors.Is(err, errTooLong):
		return fail(protocol.Unavailable, protocol.ReasonImagePullFailed, "the registry %s sent a response of more than %s",
			registry, protocol.Bytes(maxResponse))
	case errors.As(err, &response):
		return i.refused(response, fail)
	case errors.As(err, &certificate), errors.As(err, &unknown), errors.As(err, &hostname):
		return fail(protocol.Unavailable, protocol.ReasonImagePullFailed, "the worker does not trust the certificate of %s",
			registry)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fail(protocol.Unavailable, protocol.ReasonRegistryUnreachable,
			"the registry %s cannot be reached, or closed the connection", registry)
	}
	return fail(protocol.Unavailable, protocol.ReasonImagePullFailed,
		"the registry %s did not send an image for linux that the worker can read", registry)
}

// refused translates a registry's error response.
func (i *Image) refused(response *transport.Error, fail func(protocol.Code, string, string, ...any) error) error {
	says := func(codes ...transport.ErrorCode) bool {
		for _, d := range response.Errors {
			for _, c := range codes {
				if d.Code == c {
					return true
				}
			}
		}
		return false
	}
	status := response.StatusCode
	switch {
	case says(transport.ManifestUnknownErrorCode, transport.NameUnknownErrorCode), status == http.StatusNotFound:
		return fail(protocol.NotFound, protocol.ReasonImageNotFound, "the registry has no such image")
	case i.known && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return fail(protocol.PermissionDenied, protocol.ReasonImageDenied,
			"the registry denies access with the worker's credentials")
	case status == http.StatusUnauthorized:
		return fail(protocol.PermissionDenied, protocol.ReasonImageDenied,
			"the registry denies access: the worker has no credentials for this registry")
	case status == http.StatusForbidden:
		return fail(protocol.NotFound, protocol.ReasonImageNotFound, "the registry has no such image, or denies access")
	case status == http.StatusTooManyRequests:
		return fail(protocol.Unavailable, protocol.ReasonImagePullFailed, "the registry limits the rate of requests")
	case status >= http.StatusInternalServerError:
		return fail(protocol.Unavailable, protocol.ReasonRegistryUnreachable, "the registry answered with HTTP status %d",
			status)
	}
	return fail(protocol.Unavailable, protocol.ReasonImagePullFailed, "the registry answered with HTTP status %d", status)
}
