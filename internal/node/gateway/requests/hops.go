package requests

import (
	"net/http"
	"strconv"
)

// hopsHeader counts the gateways of kedge that a request has come through. Without it, a request
// to a route whose backend is a gateway again, directly or through a Service, would go round until
// the host has no room for connections. It is not Via, because servers behave differently behind
// a proxy that sends it: nginx compresses no answers then.
//
// A client can send a number of its own. It can only make its own requests fail by that: each
// gateway counts on from what it gets, and takes the header from no answer.
const hopsHeader = "Kedge-Hops"

const (
	// maxHops is how many gateways a request may have come through. Gateways of several clusters
	// in a row are few.
	maxHops = 10
	// maxMirroredHops is from which on there are no copies of a request. A mirror in a loop would
	// multiply the requests with each round.
	maxMirroredHops = 2
)

// hopsOf returns how many gateways a request has come through. What is no number of a gateway is
// none.
func hopsOf(h http.Header) int {
	values := h[hopsHeader]
	if len(values) == 0 {
		return 0
	}
	count, err := strconv.ParseUint(values[0], 10, 8)
	if err != nil {
		return 0
	}
	return int(count)
}
