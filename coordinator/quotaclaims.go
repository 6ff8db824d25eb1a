package coordinator

import (
	"cmp"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// claimName identifies a claim. A repeated request has the same claimName. Each upload has its own claim, even if
// another upload names the same digest: the store has the chunks of both until one of them ends.
type claimName struct {
	key            key
	exec           string
	upload, digest string
}

func nameOfClaim(c *protocol.QuotaClaim) claimName {
	name := claimName{key: key{Tenant: c.Tenant, ID: c.Sandbox}, exec: c.Exec, digest: c.Upload}
	if c.Upload != "" {
		name.upload = cmp.Or(c.UploadID, c.Upload) // coordinators of an earlier version send no id
	}
	return name
}

// nameOfUpload returns the name of the claim of an upload. id is the id of the object that the upload becomes.
func nameOfUpload(tenant, digest, id string) claimName {
	return nameOfClaim(&protocol.QuotaClaim{Tenant: tenant, Upload: digest, UploadID: id})
}

// claim is room in a tenant's quota that a request has taken, until the log shows what the request did.
type claim struct {
	share
	// until is when the claim expires, as time since the machine's boot. Later, no coordinator uses the claim. 0 means
	// that it has expired, or that a new leader found it as an unfinished upload. An expired claim counts until it is
	// dropped.
	until time.Duration
}

// shareOfClaim returns what a claim adds to its tenant's use.
func shareOfClaim(c *protocol.QuotaClaim) share {
	switch {
	case c.Exec != "":
		return share{execs: 1}
	case c.Upload != "":
		return share{uploads: c.Bytes}
	}
	return share{waiting: 1}
}

// take claims room for a request, until the log shows what the request did. A repeated claim replaces the earlier one.
// uploads is the size of the tenant's stored uploads. If a limit leaves no room, take returns an error that names the
// limit. It returns nil if the claim succeeded.
func (t *tenantShares) take(
	c *protocol.QuotaClaim, quota protocol.Quota, uploads protocol.Bytes, until time.Duration,
) *protocol.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := nameOfClaim(c)
	used := share{uploads: uploads}
	for _, sum := range []*share{t.sums[c.Tenant], t.claimed[c.Tenant]} {
		if sum != nil {
			used.add(*sum, 1)
		}
	}
	used.add(t.claims[name].share, -1)
	need := shareOfClaim(c)
	count := func(n int) string { return fmt.Sprint(n) }
	switch {
	case need.execs > 0 && quota.Execs > 0 && used.execs+need.execs > quota.Execs:
		return quotaError(protocol.ReasonQuotaExecs, c.Tenant, "execs", count(quota.Execs), count(used.execs), "1")
	case need.waiting > 0 && quota.Waiting > 0 && used.waiting+need.waiting > quota.Waiting:
		return quotaError(protocol.ReasonQuotaWaiting, c.Tenant, "waiting", count(quota.Waiting), count(used.waiting), "1")
	case need.uploads > 0 && quota.Uploads > 0 && used.uploads+need.uploads > quota.Uploads:
		return quotaError(protocol.ReasonQuotaUploads, c.Tenant, "uploads", quota.Uploads.String(),
			used.uploads.String(), need.uploads.String())
	}
	t.claimLocked(name, claim{need, until})
	return nil
}

// claimLocked stores a claim in place of an earlier one with the same name.
func (t *tenantShares) claimLocked(name claimName, c claim) {
	t.dropClaimLocked(name)
	t.claims[name] = c
	sumOf(t.claimed, name.key.Tenant).add(c.share, 1)
}

// drop ends a claim, so that others can take its room.
func (t *tenantShares) drop(name claimName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropClaimLocked(name)
}

// dropExpired ends a claim unless it was renewed.
func (t *tenantShares) dropExpired(name claimName, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.claims[name].until < now {
		t.dropClaimLocked(name)
	}
}

// expire records that nobody uses a claim any more. The claim still counts until it is dropped.
func (t *tenantShares) expire(name claimName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, claimed := t.claims[name]; claimed {
		c.until = 0
		t.claims[name] = c
	}
}

// found counts an unfinished upload that a new leader has found in the store, unless the upload has a claim.
func (t *tenantShares) found(name claimName, bytes protocol.Bytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, claimed := t.claims[name]; !claimed {
		t.claimLocked(name, claim{share: share{uploads: bytes}})
	}
}

func (t *tenantShares) dropClaimLocked(name claimName) {
	c, claimed := t.claims[name]
	if !claimed {
		return
	}
	delete(t.claims, name)
	sum := t.claimed[name.key.Tenant]
	if sum.add(c.share, -1); *sum == (share{}) {
		delete(t.claimed, name.key.Tenant)
	}
}

// landClaimsLocked ends the claims of the requests that a folded batch accepts. From now on, the sandbox's share counts
// what these requests use.
func (t *tenantShares) landClaimsLocked(k key, events []protocol.Event) {
	if len(t.claims) == 0 {
		return
	}
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == protocol.SandboxAccepted:
			t.dropClaimLocked(claimName{key: k})
		case e.Kind == protocol.ExecAccepted && e.Exec != nil:
			t.dropClaimLocked(claimName{key: k, exec: e.Exec.ID})
		}
	}
}

// landClaimsInLocked ends the claims of all requests that are accepted in a history, after the whole history was read.
func (t *tenantShares) landClaimsInLocked(k key, s *protocol.State) {
	for name := range t.claims {
		if name.key == k && name.upload == "" && (name.exec == "" || s.Execs[name.exec] != nil) {
			t.dropClaimLocked(name)
		}
	}
}

// expired returns the claims that no coordinator may use any more.
func (t *tenantShares) expired(now time.Duration) (names []claimName) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for name, c := range t.claims {
		if c.until < now {
			names = append(names, name)
		}
	}
	return names
}

// forgetClaims drops all claims. A coordinator calls it when it begins to lead, because claims from an earlier
// leadership are void.
func (t *tenantShares) forgetClaims() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.claims)
	clear(t.claimed)
}
