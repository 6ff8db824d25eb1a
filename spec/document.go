package spec

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Limits on the text, in bytes unless stated otherwise.
const (
	MaxBytes     = protocol.MaxSpecBytes // one document, before and after its variables are expanded
	MaxFileBytes = 4 << 20               // a text of several documents
	MaxDocuments = 256
	maxNodes     = 20_000 // values of a document; an alias counts each time
)

// Options controls how YAML is parsed.
type Options struct {
	Name string            // name of the text in errors, such as its file; may be empty
	Env  map[string]string // variables for $VAR; nil: none is set
}

// Document describes one sandbox, as parsed from YAML.
type Document struct {
	ID     string // id of the sandbox; may be empty
	Name   string // name of the sandbox; may be empty
	Spec   protocol.SandboxSpec
	Copies []LocalCopy // entries of Spec.Copies that the caller must upload

	// values of variables that the caller must seal; a variable that a parameter replaced may still be listed
	Sensitive []SensitiveValue

	name string
	at   map[string]position // position of each value, by its path

	// open has the paths of maps whose keys the author chooses, such as labels. An error about an entry gets the
	// position of that entry or no position, but never the position of the whole map.
	open map[string]bool

	sealed []sealedEntry // where Sensitive belongs
}

func newDocument(name string) *Document {
	return &Document{name: name, at: map[string]position{}, open: map[string]bool{}}
}

// LocalCopy is a file or tree on the caller's machine. Until it is uploaded, its entry in Spec.Copies has a
// target but no digest.
type LocalCopy struct {
	Index   int      `json:"index"`  // index in Spec.Copies
	Source  string   `json:"source"` // path on the caller's machine
	Exclude []string `json:"exclude,omitempty"`
}

// Parse parses a text with at most one document. An empty text is an empty document. Errors: invalid_argument
// with line, column and field. [Document.Validate] checks the values.
func Parse(data []byte, o Options) (*Document, error) {
	if len(data) > MaxBytes {
		return nil, fault(o.Name, "spec", "has more than %d bytes", MaxBytes)
	}
	documents, err := parse(data, o, 2)
	if err != nil {
		return nil, err
	}
	switch len(documents) {
	case 0:
		return &Document{name: o.Name}, nil
	case 1:
		return documents[0], nil
	}
	return nil, faultAt(o.Name, "spec", documents[1].at[""], "there is more than one document; use apply")
}

// ParseAll parses a text with 1 to [MaxDocuments] documents and skips empty ones. It returns the same errors as
// [Parse].
func ParseAll(data []byte, o Options) ([]*Document, error) {
	if len(data) > MaxFileBytes {
		return nil, fault(o.Name, "spec", "has more than %d bytes", MaxFileBytes)
	}
	documents, err := parse(data, o, MaxDocuments+1)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, fault(o.Name, "spec", "has no document")
	case len(documents) > MaxDocuments:
		return nil, faultAt(o.Name, "spec", documents[MaxDocuments].at[""], "there are more than %d documents", MaxDocuments)
	}
	return documents, nil
}

// parse parses a text. most limits the number of documents.
func parse(data []byte, o Options, most int) ([]*Document, error) {
	if at, found := overlong(data); found {
		return nil, faultAt(o.Name, "spec", at, "the document has more than %d bytes", MaxBytes)
	}
	var documents []*Document
	var errs []error
	for root, err := range roots(data, o.Name, "spec") {
		if err != nil {
			errs = append(errs, err)
			break
		}
		d := newDocument(o.Name)
		parsed := struct {
			ID   string `json:"id"`
			Name string `json:"name"`
			protocol.SandboxSpec
		}{}
		if err := (&decoder{document: d, options: o}).root(root, reflect.ValueOf(&parsed).Elem()); err != nil {
			errs = append(errs, err)
		}
		d.ID, d.Name, d.Spec = parsed.ID, parsed.Name, parsed.SandboxSpec
		if documents = append(documents, d); len(documents) == most {
			break
		}
	}
	return documents, Join(errs...)
}

// Override merges explicit parameters over the document, as [Merge] does.
func (d *Document) Override(parameters protocol.SandboxSpec) {
	d.forget(reflect.ValueOf(parameters))
	if n := parameters.Network; n != nil && n.Mode == "" && n.Allow != nil && len(n.Allow) == 0 {
		// Merge would drop the empty list, which Validate must reject.
		parameters.Network = &protocol.Network{Mode: protocol.NetworkAllow}
	}
	d.Spec = Merge(d.Spec, parameters)
}

// Clear removes the value of a field from the document. It is for a parameter that the user explicitly sets to empty.
// It does not clear maps and lists.
func (d *Document) Clear(field string) {
	s := reflect.ValueOf(&d.Spec).Elem()
	for i := range s.NumField() {
		if k := s.Field(i).Kind(); jsonName(s.Type().Field(i)) == field && k != reflect.Map && k != reflect.Slice {
			s.Field(i).SetZero()
			d.forgetBelow(field)
		}
	}
}

// forget removes the positions of values that parameters replace, because an error in a parameter has no line.
func (d *Document) forget(parameters reflect.Value) {
	for i := range parameters.NumField() {
		value, name := parameters.Field(i), jsonName(parameters.Type().Field(i))
		switch {
		case value.IsZero():
		case value.Kind() == reflect.Map:
			for _, key := range value.MapKeys() {
				d.forgetBelow(join(name, key.String()))
			}
		case value.Kind() != reflect.Slice || replaced(parameters.Type().Field(i)):
			d.forgetBelow(name)
		}
	}
}

func (d *Document) forgetBelow(path string) {
	for p := range d.at {
		if p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[") {
			delete(d.at, p)
		}
	}
}

// AddCopy adds a file or tree on the caller's machine that has not been uploaded yet. Its entry in Spec.Copies is the
// given copy, which must have no digest.
func (d *Document) AddCopy(source string, to protocol.Copy, exclude ...string) {
	d.Copies = append(d.Copies, LocalCopy{len(d.Spec.Copies), source, exclude})
	d.Spec.Copies = append(d.Spec.Copies, to)
}

// noDigest takes the place of a tree's digest before the upload.
var noDigest = "sha256-" + strings.Repeat("0", 64)

// Validate checks everything that depends on neither a host nor an upload. It returns the errors of
// [protocol.SandboxSpec.Validate]. If the value comes from the YAML, the error has its line and column.
func (d *Document) Validate() error {
	if d.ID != "" {
		if err := protocol.ValidateID("id", d.ID); err != nil {
			return d.locate(err)
		}
	}
	if d.Name != "" {
		if err := protocol.ValidateName("name", d.Name); err != nil {
			return d.locate(err)
		}
	}
	s := Merge(protocol.SandboxSpec{}, d.Spec)
	for _, c := range d.Copies {
		s.Copies[c.Index].Digest = noDigest
	}
	return d.locate(s.Validate())
}

// locate adds the position in the text to an error that names a field.
func (d *Document) locate(err error) error { return d.locateBelow("spec", err) }

// locateBelow does the same as locate for errors whose fields begin with field instead of spec.
func (d *Document) locateBelow(field string, err error) error {
	if err == nil {
		return nil
	}
	e := *protocol.AsError(err)
	path := strings.TrimPrefix(e.Field, field+".")
	at, ok := d.at[path]
	if parent := path[:max(strings.LastIndexByte(path, '.'), 0)]; !ok && parent != "" && !d.open[parent] {
		at, ok = d.at[parent] // the value has a short form, or its map lacks the field
	}
	if ok && path != "" {
		e.Message = place(d.name, at) + e.Message
	}
	return &e
}

// fault returns an error about a text as a whole.
func fault(name, field, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	if name != "" {
		message = name + ": " + message
	}
	return &protocol.Error{Code: protocol.InvalidArgument, Field: field, Message: message}
}

// faultAt returns an error about a position in a text.
func faultAt(name, field string, at position, format string, args ...any) error {
	return &protocol.Error{Code: protocol.InvalidArgument, Field: field,
		Message: place(name, at) + fmt.Sprintf(format, args...)}
}

func place(name string, at position) string {
	text := fmt.Sprintf("line %d, column %d: ", at.line, at.column)
	if name != "" {
		text = name + ": " + text
	}
	return text
}
