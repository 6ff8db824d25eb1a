package spec

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// SensitiveValue is the value of a sensitive environment variable in a document. The value is not in the document's
// spec, which has [protocol.Masked] in its place until [Document.Sealed].
type SensitiveValue struct {
	Service string `json:"service,omitempty"` // service that gets the variable; empty: the primary container
	Name    string `json:"name"`
	Value   string `json:"-"`
}

// Format writes the name of the variable for every verb.
func (v SensitiveValue) Format(f fmt.State, _ rune) {
	_, _ = f.Write([]byte(v.Name + "=" + protocol.Masked)) // callers see no error of a Formatter
}

// AddSensitive adds a sensitive variable to the primary container. It replaces the value that the document has for the
// variable. Error: invalid_argument with the given field.
func (d *Document) AddSensitive(field, name, value string) error {
	if err := checkSensitive(value); err != nil {
		return protocol.Invalid(field, "%s: %v", name, err)
	}
	d.Override(protocol.SandboxSpec{SensitiveEnv: map[string]protocol.Sealed{name: protocol.Sealed(protocol.Masked)}})
	d.Sensitive = append(d.Sensitive, SensitiveValue{Name: name, Value: value})
	return nil
}

// Sealed returns the document's spec with sealed values. seal seals the value of a variable. Sealed does not change the
// document. Error: the error of seal, with the field.
func (d *Document) Sealed(seal func(name, value string) (protocol.Sealed, error)) (protocol.SandboxSpec, error) {
	whole := Merge(d.Spec, protocol.SandboxSpec{}) // a copy
	for _, v := range d.Sensitive {
		into, field := whole.SensitiveEnv, "spec"
		if v.Service != "" {
			service, _ := whole.Service(v.Service)
			into, field = service.SensitiveEnv, whole.ServiceField(v.Service)
		}
		if _, there := into[v.Name]; !there {
			continue // a parameter replaced the variable or its service
		}
		sealed, err := seal(v.Name, v.Value)
		if err != nil {
			e := *protocol.AsError(err)
			e.Field = field + ".sensitive_env." + v.Name
			return whole, &e
		}
		into[v.Name] = sealed
	}
	return whole, nil
}

// checkSensitive checks a value before it is sealed. The error does not show the value.
func checkSensitive(value string) error {
	switch {
	case value == protocol.Masked:
		return fmt.Errorf("has no value: %s only stands for a hidden value, so give the value itself", protocol.Masked)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("must not contain a NUL byte")
	case len(value) > protocol.MaxSecretValue:
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(value), protocol.MaxSecretValue)
	}
	return nil
}

// sensitiveEnv decodes a map of sensitive variables. Its values are not part of any error.
func (d *decoder) sensitiveEnv(node *yaml.Node, into *map[string]protocol.Sealed, path string) error {
	if node.Kind != yaml.MappingNode {
		return d.wrong(node, path, "must be a map of variables")
	}
	d.document.open[path] = true
	*into = map[string]protocol.Sealed{}
	of := strings.TrimSuffix(strings.TrimSuffix(path, "sensitive_env"), ".")
	return d.entries(node, path, func(key, value *yaml.Node) error {
		(*into)[key.Value] = protocol.Sealed(protocol.Masked)
		return d.addSensitive(value, of, key.Value, join(path, key.Value))
	})
}

// sensitive decodes {sensitive: VALUE}, which an entry of env can have instead of a value. of is the path of the spec
// or service.
func (d *decoder) sensitive(key, node *yaml.Node, of string) error {
	path := join(join(of, "env"), key.Value)
	if len(node.Content) != 2 || node.Content[0].Value != "sensitive" {
		return d.wrong(node, path, "must be text, or a map with sensitive: VALUE")
	}
	return d.addSensitive(node.Content[1], of, key.Value, join(path, "sensitive"))
}

func (d *decoder) addSensitive(node *yaml.Node, of, name, path string) error {
	node, err := d.enter(node, path)
	if err != nil {
		return err
	}
	d.mark(node, join(join(of, "sensitive_env"), name))
	if d.field != "" {
		return d.wrong(node, path, "cannot have a default: a value is sealed for one request")
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() == "!!null" {
		return d.wrong(node, path, "must be text")
	}
	value, err := d.scalar(node, path, "text")
	if err != nil {
		return err
	}
	if err := checkSensitive(value); err != nil {
		return d.wrong(node, path, "%v", err)
	}
	service := ""
	if i := strings.LastIndexByte(of, '.'); i >= 0 { // such as required_services.db
		service = of[i+1:]
	}
	d.document.Sensitive = append(d.document.Sensitive, SensitiveValue{service, name, value})
	d.document.sealed = append(d.document.sealed, sealedEntry{of, name})
	return nil
}

// sealedEntry is a sensitive variable of the spec or service at a path.
type sealedEntry struct{ of, name string }

// placeSensitive adds the sensitive variables that env has to sensitive_env of the spec or service at a path.
func (d *decoder) placeSensitive(path string, env *map[string]protocol.Sealed) {
	for _, e := range d.document.sealed {
		if e.of == path {
			if *env == nil {
				*env = map[string]protocol.Sealed{}
			}
			(*env)[e.name] = protocol.Sealed(protocol.Masked)
		}
	}
}

// ParseSecret parses the short form of a secret: NAME[,file=PATH|,env=VARIABLE][,version=N][,mask]. An error describes
// the expected form.
func ParseSecret(text string) (protocol.SecretUse, error) { return readSecret(text) }

func readSecret(text string) (u protocol.SecretUse, err error) {
	parts := strings.Split(text, ",")
	u.Name = parts[0]
	given := map[string]bool{}
	for _, part := range parts[1:] {
		key, value, valued := strings.Cut(part, "=")
		ok := !given[key] && valued == (key != "mask") && (!valued || value != "")
		given[key] = true
		switch key {
		case "file":
			u.File = value
		case "env":
			u.Env = value
		case "mask":
			u.Mask = true
		case "version":
			u.Version, err = strconv.ParseUint(value, 10, 64)
			ok = ok && err == nil && u.Version > 0
		default:
			ok = false
		}
		if !ok {
			return protocol.SecretUse{}, errSecretForm(text)
		}
	}
	if u.Name == "" {
		return protocol.SecretUse{}, errSecretForm(text)
	}
	return u, nil
}

func errSecretForm(text string) error {
	return fmt.Errorf("must be NAME[,file=PATH|,env=VARIABLE][,version=N][,mask], got %.200q", text)
}
