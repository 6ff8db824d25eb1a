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

// Life returns when a NATS credentials file was issued and when it expires. Zero: the file does not say, or it never
// expires.
func Life(file []byte) (issued, expires time.Time) {
	claims, _ := claimsOf(file)
	if claims.Issued != 0 {
		issued = time.Unix(claims.Issued, 0).UTC()
	}
	if claims.Expires != 0 {
		expires = time.Unix(claims.Expires, 0).UTC()
	}
	return issued, expires
}

// claims are the parts of a JWT that Boxfleet reads.
type claims struct {
	Subject string `json:"sub"`
	Name    string `json:"name"`
	Issued  int64  `json:"iat"` // Unix time
	Expires int64  `json:"exp"` // Unix time; 0: never
	NATS    struct {
		Tags []string `json:"tags"`
	} `json:"nats"`
}

func claimsOf(file []byte) (found claims, ok bool) {
	parts := strings.Split(tokenOf(string(file)), ".")
	if len(parts) != 3 {
		return claims{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &found) != nil {
		return claims{}, false
	}
	return found, true
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
