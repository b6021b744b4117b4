// A stand-in for the npm package xor-ack-dynamodb, which the npm registry no longer has. It is not the package's
// source, but has its documented behaviour on the wire, with the same SDK (aws-sdk 2, DocumentClient).
//
//   create  put {key, stamp} if the key is absent
//   stamp   consistent get, XOR; then delete if the result is zero, else put {key, stamp}. The put replaces the whole
//           item, so its other attributes are lost. Both need "the key exists, and the stamp is the one that was read".
//           A missing item is not checked: reading its stamp is a TypeError
//   delete  delete if the key exists
//
// A refused condition is an error with the code "Conflict", a wrong argument one with the code "Bad Request".
//
// Reads one JSON command a line, {id, op, tag, ...}; commands run concurrently, and answers are written when ready.
// A fourth command, `stampAll {stamps}`, stamps all at once and retries each stamp until it is not stale.

"use strict";

const readline = require("readline");
const AWS = require("aws-sdk");

const [endpoint, table, partitionKey] = process.argv.slice(2);
const dynamoDB = new AWS.DynamoDB.DocumentClient({
  endpoint,
  region: "us-east-1",
  accessKeyId: "test",
  secretAccessKey: "test",
  maxRetries: 0,
  httpOptions: { agent: new (require("http").Agent)({ keepAlive: true, maxSockets: 128 }) },
});

function failure(code, name) {
  return Object.assign(new Error(name), { code, name });
}

function checked(stamp) {
  if (stamp.every((byte) => byte === 0)) throw failure("Bad Request", "ZeroBufferNoOp");
  return stamp;
}

function xor(left, right) {
  if (left.length !== right.length) throw failure("Bad Request", "BufferLengthsUnequal");
  return left.map((byte, index) => byte ^ right[index]);
}

async function unlessRefused(request, name) {
  try {
    await request.promise();
  } catch (error) {
    throw error.code === "ConditionalCheckFailedException" ? failure("Conflict", name) : error;
  }
}

async function create(tag, stamp) {
  const Item = { [partitionKey]: tag, stamp: checked(stamp) };
  const condition = { ConditionExpression: "attribute_not_exists(#k)", ExpressionAttributeNames: { "#k": partitionKey } };
  await unlessRefused(dynamoDB.put({ TableName: table, Item, ...condition }), "TagExists");
  return { acked: false };
}

async function stamp(tag, change) {
  checked(change);
  const Key = { [partitionKey]: tag };
  const found = await dynamoDB.get({ TableName: table, Key, ConsistentRead: true }).promise();
  const old = found.Item.stamp;
  const next = xor(Buffer.from(old), change);
  const acked = next.every((byte) => byte === 0);
  const condition = {
    ConditionExpression: "attribute_exists(#k) AND #s = :old",
    ExpressionAttributeNames: { "#k": partitionKey, "#s": "stamp" },
    ExpressionAttributeValues: { ":old": old },
  };
  const request = acked
    ? dynamoDB.delete({ TableName: table, Key, ...condition })
    : dynamoDB.put({ TableName: table, Item: { ...Key, stamp: next }, ...condition });
  await unlessRefused(request, "StaleLocalData");
  return { acked };
}

async function remove(tag) {
  const condition = { ConditionExpression: "attribute_exists(#k)", ExpressionAttributeNames: { "#k": partitionKey } };
  await unlessRefused(dynamoDB.delete({ TableName: table, Key: { [partitionKey]: tag }, ...condition }), "TagNotFound");
  return {};
}

async function stampAll(tag, stamps) {
  let attempts = 0;
  let acked = 0;
  const began = process.hrtime.bigint();
  await Promise.all(
    stamps.map(async (change) => {
      for (;;) {
        attempts += 1;
        try {
          if ((await stamp(tag, change)).acked) acked += 1;
          return;
        } catch (error) {
          if (error.code !== "Conflict" && error.code !== "TransactionConflictException") throw error;
        }
      }
    }),
  );
  return { attempts, acked, seconds: Number(process.hrtime.bigint() - began) / 1e9 };
}

const bytes = (hex) => Buffer.from(hex, "hex");
const operations = {
  create: (command) => create(command.tag, bytes(command.stamp)),
  stamp: (command) => stamp(command.tag, bytes(command.stamp)),
  delete: (command) => remove(command.tag),
  stampAll: (command) => stampAll(command.tag, command.stamps.map(bytes)),
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = await operations[command.op](command);
  } catch (error) {
    answer = { error: error.name, code: error.code };
  }
  process.stdout.write(`${JSON.stringify({ id: command.id, ...answer })}\n`);
});
