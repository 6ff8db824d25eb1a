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

// Encode encodes v as msgpack with the field names of its JSON form. Of the tag options, msgpack honours only
// omitempty, so an optional time needs both omitempty (for msgpack) and omitzero (for JSON). Encode panics on a
// type that cannot be encoded, which is a programming error.
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

// EncodeAs encodes v in the given content type: JSON for [ContentJSON], msgpack for anything else. It panics on
// a type that cannot be encoded.
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

// Decode decodes msgpack from a peer of any version: it ignores unknown fields. Errors: invalid_argument with
// reason "undecodable".
func Decode(data []byte, v any) error {
	return decodeMsgpack(data, v, false)
}

// DecodeAs is [Decode] for a payload in the given content type.
func DecodeAs(contentType string, data []byte, v any) error {
	if ContentTypeOf(contentType, nil) == ContentJSON {
		return decodeError(true, data, v, false, json.Unmarshal(data, v))
	}
	return decodeMsgpack(data, v, false)
}

// DecodeStrict decodes a client's request or query and rejects unknown fields, so that no option is silently ignored.
// contentType is the message's header; see [ContentTypeOf]. DecodeStrict also rejects msgpack extensions, including
// timestamps: no request or query contains any. Errors: invalid_argument with reason "undecodable" or "unknown_field";
// Field is the path in the payload.
func DecodeStrict(contentType string, data []byte, v any) error {
	switch ContentTypeOf(contentType, data) {
	case ContentMsgpack:
		return decodeMsgpack(data, v, true)
	case ContentJSON:
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			return decodeError(true, data, v, true, err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return Errorf(InvalidArgument, ReasonUndecodable, "trailing data after the JSON value")
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
	return decodeChecked(data, v, strict)
}

// DecodeFileMessage decodes a message about files that untrusted code may have made, such as a helper in a container.
// It refuses arrays with more than [MaxFileMatches] elements: an element may take one byte in the message, and hundreds
// of bytes in memory. With strict, it also refuses what [DecodeStrict] refuses. Errors: invalid_argument with reason
// "undecodable", too_large or "unknown_field".
func DecodeFileMessage(data []byte, v any, strict bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Errorf(InvalidArgument, ReasonUndecodable, "malformed msgpack")
		}
	}()
	if err := checkMsgpack(data, !strict); err != nil {
		return err
	}
	if _, ok := (msgpackChecker{extensions: !strict, most: MaxFileMatches}).skipValue(data, maxDepth); !ok {
		return Errorf(InvalidArgument, ReasonTooLarge, "an array has more than %d elements", MaxFileMatches)
	}
	return decodeChecked(data, v, strict)
}

// decodeChecked decodes well-formed msgpack.
func decodeChecked(data []byte, v any, strict bool) error {
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(strict)
	return decodeError(false, data, v, strict, dec.Decode(v))
}

// decodeError turns a decoder's error into an [Error] that names the offending field, if one can be identified.
func decodeError(isJSON bool, data []byte, v any, strict bool, err error) error {
	if err == nil {
		return nil
	}
	if e := firstMismatch(isJSON, data, v, strict); e != nil {
		return e
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return Errorf(InvalidArgument, ReasonUndecodable,
			"is not valid JSON: %.200s, at byte %d", syntax.Error(), syntax.Offset)
	case isJSON && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return Errorf(InvalidArgument, ReasonUndecodable, "is not valid JSON: unexpected end")
	case isJSON:
		return Errorf(InvalidArgument, ReasonUndecodable, "is JSON with an unexpected structure")
	}
	return Errorf(InvalidArgument, ReasonUndecodable, "is msgpack with an unexpected structure")
}

// CheckVersion rejects an envelope version outside 1 to [Version]. Errors: failed_precondition with reason
// "unsupported_version".
func CheckVersion(v int) error {
	if v < 1 || v > Version {
		return &Error{Code: FailedPrecondition, Reason: ReasonUnsupportedVersion, Field: "v",
			Message: fmt.Sprintf("must be 1 to %d, got %d", Version, v)}
	}
	return nil
}
