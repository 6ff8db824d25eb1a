package firewall

import "github.com/boxfleet/boxfleet/protocol"

// never are the ranges that no sandbox reaches, whatever it is allowed.
var never = protocol.NeverReached()

// private are the ranges that are not the internet. A sandbox reaches them only where its policy and the
// host's operator allow it.
var private = protocol.PrivateRanges()
