package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

// Content types of a payload.
const (
	ContentMsgpack = "application/msgpack"
	ContentJSON    = "application/json"
)

// Encode writes v as msgpack with the field names of the JSON form. It panics on a type that
// cannot be encoded, which is a defect. Of the tags it knows omitempty only: a time that may be
// absent has both, omitempty for msgpack and omitzero for JSON.
func Encode(v any) []byte {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.SetCustomStructTag("json")
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	if err := enc.Encode(v); err != nil {
		panic("protocol: encode: " + err.Error())
	}
	return buf.Bytes()
}

// EncodeAs writes v in the given content type; anything but [ContentJSON] is msgpack.
func EncodeAs(contentType string, v any) []byte {
	if ContentTypeOf(contentType, nil) != ContentJSON {
		return Encode(v)
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic("protocol: encode: " + err.Error())
	}
	return data
}

// Decode reads what a peer wrote, leniently: fields of a newer version are passed over.
func Decode(data []byte, v any) error {
	return decodeMsgpack(data, v, false)
}

// DecodeAs reads what a peer wrote in the given content type, leniently.
func DecodeAs(contentType string, data []byte, v any) error {
	if ContentTypeOf(contentType, nil) == ContentJSON {
		return explained(true, data, v, false, json.Unmarshal(data, v))
	}
	return decodeMsgpack(data, v, false)
}

// DecodeStrict reads what a client sent: a field that is not known is refused by name, so that no
// option is silently ignored. contentType is the message's header: see [ContentTypeOf]. In msgpack an
// extension, which a time is, is refused too: no request or query has one. An error names the field by its
// path in the payload.
func DecodeStrict(contentType string, data []byte, v any) error {
	switch ContentTypeOf(contentType, data) {
	case ContentMsgpack:
		return decodeMsgpack(data, v, true)
	case ContentJSON:
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			return explained(true, data, v, true, err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return Errorf(InvalidArgument, ReasonUndecodable, "something follows the JSON value")
		}
		return nil
	}
	return &Error{Code: InvalidArgument, Reason: ReasonUndecodable, Field: HeaderContentType,
		Message: "must be " + ContentMsgpack + " or " + ContentJSON}
}

func decodeMsgpack(data []byte, v any, strict bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Errorf(InvalidArgument, ReasonUndecodable, "malformed msgpack")
		}
	}()
	if err := checkMsgpack(data, !strict); err != nil {
		return err
	}
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(strict)
	return explained(false, data, v, strict, dec.Decode(v))
}

// explained says what is wrong with a payload that a decoder did not take.
func explained(isJSON bool, data []byte, v any, strict bool, err error) error {
	if err == nil {
		return nil
	}
	if e := misfit(isJSON, data, v, strict); e != nil {
		return e
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return Errorf(InvalidArgument, ReasonUndecodable, "is not JSON: %.200s, at byte %d", syntax.Error(), syntax.Offset)
	case isJSON && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return Errorf(InvalidArgument, ReasonUndecodable, "is not JSON: it ends too early")
	case isJSON:
		return Errorf(InvalidArgument, ReasonUndecodable, "is JSON of another form than it should be")
	}
	return Errorf(InvalidArgument, ReasonUndecodable, "is msgpack of another form than it should be")
}

// CheckVersion refuses an envelope of a version that this code does not know.
func CheckVersion(v int) error {
	if v < 1 || v > Version {
		return &Error{Code: FailedPrecondition, Reason: ReasonUnsupportedVersion, Field: "v",
			Message: fmt.Sprintf("must be 1 to %d, got %d", Version, v)}
	}
	return nil
}
