package protocol

import "strings"

// Each subject of a stream names the worker, the tenant, the user and the sandbox. The server's permissions prove the
// worker to the client, and the tenant and the user to the worker. The user is [NoUser] for a client without a user.
// Arguments of the functions may be "*".

// StreamOpenSubject returns the subject on which a client sends a [StreamOpen].
func StreamOpenSubject(worker, tenant, user, sandbox string) string {
	return root + "stream.open." + worker + "." + tenant + "." + user + "." + sandbox
}

// StreamUpSubject returns the subject of the frames that a client sends to a worker.
func StreamUpSubject(worker, tenant, user, sandbox, id string) string {
	return root + "stream.up." + worker + "." + tenant + "." + user + "." + sandbox + "." + id
}

// StreamDownSubject returns the subject of the frames that a worker sends to a client.
func StreamDownSubject(worker, tenant, user, sandbox, id string) string {
	return root + "stream.down." + worker + "." + tenant + "." + user + "." + sandbox + "." + id
}

// StreamPrefix begins the subjects of all streams.
const StreamPrefix = root + "stream."

// SplitStreamOpenSubject splits a [StreamOpenSubject]. user is empty for a client without a user. ok is false for any
// other subject.
func SplitStreamOpenSubject(subject string) (worker, tenant, user, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"stream.open.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 4 {
		return "", "", "", "", false
	}
	if parts[2] == NoUser {
		parts[2] = ""
	}
	return parts[0], parts[1], parts[2], parts[3], true
}
