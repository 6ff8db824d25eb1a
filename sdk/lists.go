package sdk

import (
	"context"
	"iter"

	"github.com/boxfleet/boxfleet/protocol"
)

// Page is one page of a list.
type Page[T any] struct {
	Items []T
	Next  string // token of the next page, for [WithPage]; empty on the last page
}

// ReadAll reads a list to its end and returns its items. If the list ends with an error, ReadAll returns the error and
// the items before the error. Do not use ReadAll for a followed sequence that does not end by itself.
func ReadAll[T any](list iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for item, err := range list {
		if err != nil {
			return all, err
		}
		all = append(all, item)
	}
	return all, nil
}

// pages reads a list page by page. It starts with the page whose token is start; an empty token means the first page.
func pages[T any](start string, read func(token string) (*Page[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for next := start; ; {
			p, err := read(next)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range p.Items {
				if !yield(item, nil) {
					return
				}
			}
			if next = p.Next; next == "" {
				return
			}
		}
	}
}

// listOf makes a list of items that are all read at once.
func listOf[T any](read func() ([]T, error)) iter.Seq2[T, error] {
	return pages("", func(string) (*Page[T], error) {
		items, err := read()
		return &Page[T]{Items: items}, err
	})
}

// List reads the tenant's sandboxes, newest first. It fetches each page when the caller's loop needs it. The sequence
// ends after the first error. A sandbox that is created or deleted during the reading may or may not be listed.
//
// Options: [WithLabels], [WithName], [WithStates], [WithPageSize], [WithPage]. Errors: invalid_argument naming the
// field; unavailable if no coordinator is running.
func (c *Client) List(ctx context.Context, opts ...ListOption) iter.Seq2[*Sandbox, error] {
	s := settingsOf(opts, ListOption.forList)
	return pages(s.page, func(page string) (*Page[*Sandbox], error) { return listPage(ctx, c, s, page) })
}

// ListPage reads one page of the sandboxes. Options and errors are the same as for [Client.List].
func (c *Client) ListPage(ctx context.Context, opts ...ListOption) (*Page[*Sandbox], error) {
	s := settingsOf(opts, ListOption.forList)
	return listPage(ctx, c, s, s.page)
}

func listPage(ctx context.Context, c *Client, s *settings, page string) (*Page[*Sandbox], error) {
	if s.name != nil {
		if err := protocol.ValidateID("name", *s.name); err != nil {
			return nil, err
		}
	}
	if err := protocol.ValidateHostLabels("labels", s.labels); err != nil { // labels of sandboxes have the same rules
		return nil, err
	}
	reply, err := c.query(ctx, protocol.EndpointList, protocol.Query{
		Labels: s.labels, Name: given(s.name), States: s.states, Limit: s.pageSize, Page: page})
	if err != nil {
		return nil, err
	}
	found := &Page[*Sandbox]{Next: reply.Next, Items: make([]*Sandbox, len(reply.Sandboxes))}
	for i, info := range reply.Sandboxes {
		found.Items[i] = newSandbox(c, info)
	}
	return found, nil
}

// Execs reads the sandbox's execs, newest first. It fetches each page when the caller's loop needs it. The sequence
// ends after the first error.
//
// Options: [WithExecStates], [WithPageSize], [WithPage]. Errors: not_found; invalid_argument; unavailable if no
// coordinator is running.
func (s *Sandbox) Execs(ctx context.Context, opts ...ExecsOption) iter.Seq2[*Exec, error] {
	o := settingsOf(opts, ExecsOption.forExecs)
	return pages(o.page, func(page string) (*Page[*Exec], error) { return execsPage(ctx, s, o, page) })
}

// ExecsPage reads one page of the sandbox's execs. Options and errors are the same as for [Sandbox.Execs].
func (s *Sandbox) ExecsPage(ctx context.Context, opts ...ExecsOption) (*Page[*Exec], error) {
	o := settingsOf(opts, ExecsOption.forExecs)
	return execsPage(ctx, s, o, o.page)
}

func execsPage(ctx context.Context, s *Sandbox, o *settings, page string) (*Page[*Exec], error) {
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.query(ctx, protocol.EndpointExecs, protocol.Query{
		Sandbox: id, MinSequence: s.newest(), States: o.states, Limit: o.pageSize, Page: page})
	if err != nil {
		return nil, err
	}
	found := &Page[*Exec]{Next: reply.Next, Items: make([]*Exec, len(reply.Execs))}
	for i, info := range reply.Execs {
		found.Items[i] = newExec(s, info)
	}
	return found, nil
}
