package spec

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Bounds of what is read.
const (
	MaxBytes     = protocol.MaxSpecBytes // of one document, and of its text once variables are filled in
	MaxFileBytes = 4 << 20               // of several documents
	MaxDocuments = 256
	maxNodes     = 20_000 // values of a document, those that aliases repeat counted each time
)

// Options says how YAML is read.
type Options struct {
	Name string            // of the text, such as its file, for errors; may be empty
	Env  map[string]string // the variables for $VAR; nil: none is set
}

// Document is one sandbox, as YAML describes it.
type Document struct {
	ID     string // of the sandbox; empty where the document has none
	Name   string // of the sandbox; empty where the document has none
	Spec   protocol.SandboxSpec
	Copies []LocalCopy // entries of Spec.Copies that the caller has yet to upload

	name string
	at   map[string]position // of each value, by its path
	open map[string]bool     // the paths of maps to which anybody may add names: their place is not that of an entry
}

func newDocument(name string) *Document {
	return &Document{name: name, at: map[string]position{}, open: map[string]bool{}}
}

// LocalCopy is a file or tree of the caller's machine. Until it is uploaded, its entry of
// Spec.Copies has a target and no digest.
type LocalCopy struct {
	Index   int      `json:"index"`  // of its entry in Spec.Copies
	Source  string   `json:"source"` // path on the caller's machine
	Exclude []string `json:"exclude,omitempty"`
}

// Parse reads a text of one document. An empty text is an empty document. Errors: invalid_argument
// that names line, column and field. What a spec may say is checked by [Document.Validate].
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
	return nil, faultAt(o.Name, "spec", documents[1].at[""], "there is more than one document; those are for apply")
}

// ParseAll reads a text of one or more documents. Empty ones are passed over.
func ParseAll(data []byte, o Options) ([]*Document, error) {
	if len(data) > MaxFileBytes {
		return nil, fault(o.Name, "spec", "has more than %d bytes", MaxFileBytes)
	}
	documents, err := parse(data, o, MaxDocuments+1)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, fault(o.Name, "spec", "holds no document")
	case len(documents) > MaxDocuments:
		return nil, faultAt(o.Name, "spec", documents[MaxDocuments].at[""], "there are more than %d documents", MaxDocuments)
	}
	return documents, nil
}

// parse reads at most so many documents.
func parse(data []byte, o Options, most int) ([]*Document, error) {
	if at, found := overlong(data); found {
		return nil, faultAt(o.Name, "spec", at, "the document has more than %d bytes", MaxBytes)
	}
	var documents []*Document
	var wrong []error
	for root, err := range roots(data, o.Name, "spec") {
		if err != nil {
			wrong = append(wrong, err)
			break
		}
		d := newDocument(o.Name)
		whole := struct {
			ID   string `json:"id"`
			Name string `json:"name"`
			protocol.SandboxSpec
		}{}
		if err := (&decoder{document: d, options: o}).whole(root, reflect.ValueOf(&whole).Elem()); err != nil {
			wrong = append(wrong, err)
		}
		d.ID, d.Name, d.Spec = whole.ID, whole.Name, whole.SandboxSpec
		if documents = append(documents, d); len(documents) == most {
			break
		}
	}
	return documents, Join(wrong...)
}

// Override puts explicit parameters over the document, as [Merge] does.
func (d *Document) Override(parameters protocol.SandboxSpec) {
	d.forget(reflect.ValueOf(parameters))
	if n := parameters.Network; n != nil && n.Mode == "" && n.Allow != nil && len(n.Allow) == 0 {
		parameters.Network = &protocol.Network{Mode: protocol.NetworkAllow} // Merge knows no list of nothing, and Validate must refuse it
	}
	d.Spec = Merge(d.Spec, parameters)
}

// Clear takes a value away that the document gives, so that a parameter that was given empty says
// something. Maps and lists stay.
func (d *Document) Clear(field string) {
	s := reflect.ValueOf(&d.Spec).Elem()
	for i := range s.NumField() {
		if k := s.Field(i).Kind(); jsonName(s.Type().Field(i)) == field && k != reflect.Map && k != reflect.Slice {
			s.Field(i).SetZero()
			d.forgetBelow(field)
		}
	}
}

// forget forgets the positions of what parameters replace: an error in a parameter is in no line.
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

// AddCopy adds a file or tree of the caller's machine, to be uploaded; to is its entry without a
// digest.
func (d *Document) AddCopy(source string, to protocol.Copy, exclude ...string) {
	d.Copies = append(d.Copies, LocalCopy{len(d.Spec.Copies), source, exclude})
	d.Spec.Copies = append(d.Spec.Copies, to)
}

// noDigest stands for the digest of a tree that is not uploaded yet.
var noDigest = "sha256-" + strings.Repeat("0", 64)

// Validate checks everything that can be known without a host and before an upload. The error names
// the field and, where the YAML says it, line and column.
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

// locate adds the place in the text to an error that names a field.
func (d *Document) locate(err error) error { return d.locateBelow("spec", err) }

// locateBelow is locate for errors whose fields are named below another one.
func (d *Document) locateBelow(field string, err error) error {
	if err == nil {
		return nil
	}
	e := *protocol.AsError(err)
	path := strings.TrimPrefix(e.Field, field+".")
	at, ok := d.at[path]
	if parent := path[:max(strings.LastIndexByte(path, '.'), 0)]; !ok && parent != "" && !d.open[parent] {
		at, ok = d.at[parent] // of a short form, or of an entry that lacks the field
	}
	if ok && path != "" {
		e.Message = place(d.name, at) + e.Message
	}
	return &e
}

// fault is an error about a whole text.
func fault(name, field, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	if name != "" {
		message = name + ": " + message
	}
	return &protocol.Error{Code: protocol.InvalidArgument, Field: field, Message: message}
}

// faultAt is an error about a place in a text.
func faultAt(name, field string, at position, format string, args ...any) error {
	return &protocol.Error{Code: protocol.InvalidArgument, Field: field, Message: place(name, at) + fmt.Sprintf(format, args...)}
}

func place(name string, at position) string {
	text := fmt.Sprintf("line %d, column %d: ", at.line, at.column)
	if name != "" {
		text = name + ": " + text
	}
	return text
}
