package rights

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Names of the tags of credentials. A tag is a name, a colon and a value. [Template] refers to the last two.
const (
	TagRole   = "role"
	TagTenant = "tenant"
	TagHost   = "host"
)

// FromCredentials returns the identity that a NATS credentials file names. It checks no signature: servers do that. ok
// is false if package auth did not write the file, for example because another operator wrote it.
func FromCredentials(file []byte) (id Identity, ok bool) {
	claims, ok := claimsOf(file)
	if !ok {
		return Identity{}, false
	}
	id = Identity{Name: claims.Name, Key: claims.Subject}
	for _, tag := range claims.NATS.Tags {
		switch name, value, _ := strings.Cut(tag, ":"); name {
		case TagRole:
			id.Role = Role(value)
		case TagTenant:
			id.Tenant = value
		case TagHost:
			id.Host = value
		}
	}
	if id.Role == "" { // an older version wrote the file
		switch {
		case id.Tenant != "":
			id.Role = User
		case id.Host != "":
			id.Role = Worker
		}
	}
	return id, id.Validate() == nil
}

// ExpiryOf returns when the credentials in a file expire; zero: never, or the file does not say so. It checks no
// signature.
func ExpiryOf(file []byte) time.Time {
	claims, ok := claimsOf(file)
	if !ok || claims.Expires == 0 {
		return time.Time{}
	}
	return time.Unix(claims.Expires, 0)
}

// claims is the part of a JWT that Boxfleet reads.
type claims struct {
	Subject string `json:"sub"`
	Name    string `json:"name"`
	Expires int64  `json:"exp"` // Unix time in seconds; 0: never
	NATS    struct {
		Tags []string `json:"tags"`
	} `json:"nats"`
}

// claimsOf decodes the JWT of a credentials file.
func claimsOf(file []byte) (c claims, ok bool) {
	parts := strings.Split(tokenOf(string(file)), ".")
	if len(parts) != 3 {
		return claims{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return c, err == nil && json.Unmarshal(payload, &c) == nil
}

// tokenOf returns the JWT of a credentials file: the line below the first line of dashes.
func tokenOf(file string) string {
	lines := strings.Split(strings.TrimSpace(file), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "---") && i+1 < len(lines) {
			return strings.TrimSpace(lines[i+1])
		}
	}
	return ""
}

// User returns the name of the identity as it appears in subjects. The name of an identity without a tenant begins with
// @.
func (id Identity) User() string {
	if id.Role.HasTenant() {
		return id.Name
	}
	return "@" + id.Name
}
