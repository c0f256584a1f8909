// what a page keeps of a chat, without a framework
export class State {
  messages = [];
  status = "ready";
  error = undefined;
  pushMessage = (message) => void this.messages.push(message);
  popMessage = () => void this.messages.pop();
  replaceMessage = (index, message) => void (this.messages[index] = message);
  snapshot = structuredClone;
}
